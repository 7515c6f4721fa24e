"""What one client may ask of the server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How large, how long and how many at once.

    Parameters
    ----------
    body_bytes : int
        The largest request body, all uploaded files together.
    pixels : int
        The largest uploaded picture; its header is read before anything is decoded.
    sound_seconds : float
        The longest uploaded sound.
    header_seconds : float
        Until the headers of a request are complete; then the connection is closed.
    body_seconds : float
        Until the body of a request is complete; then the answer is 408.
    answer_seconds : float
        Until the collection has answered; then the answer is 504.
    stall_seconds : float
        How long a client may leave a part of the answer unread; then the connection is closed.
    at_once : int
        Requests that the collection works on at the same time; one of them at most encodes words or files.
    waiting : int
        Requests that may wait for their turn; those beyond get 503 with Retry-After.
    uploads : int
        Requests with files at the same time, from their first byte to their answer; those beyond get 503.
    connections : int
        Open connections; those beyond get 503.
    hits : int
        The largest number of items in one answer.
    characters : int
        The longest text of a query, id, label or condition.
    terms : int
        The most terms with weights in the text of a query; each is encoded by itself.
    """

    body_bytes: int = 32 * 2**20
    pixels: int = 40_000_000
    sound_seconds: float = 600.0
    header_seconds: float = 10.0
    body_seconds: float = 60.0
    answer_seconds: float = 60.0
    stall_seconds: float = 30.0
    at_once: int = 4
    waiting: int = 64
    uploads: int = 8
    connections: int = 256
    hits: int = 200
    characters: int = 2000
    terms: int = 16
