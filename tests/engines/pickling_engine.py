"""An engine that sends everything through pickle, as a cluster does, and works in this process."""

from __future__ import annotations

import pickle


class PicklingEngine:
    name = "pickling"
    workers = 2

    def __init__(self):
        self.done = []  # the names of the functions, one entry per item

    def map(self, function, items, *shared, device="cpu"):
        job = pickle.dumps((function, shared))
        for item in items:
            work, given = pickle.loads(job)
            self.done.append(function.__name__)
            yield pickle.loads(pickle.dumps(work(pickle.loads(pickle.dumps(item)), *given)))

    def close(self):
        pass
