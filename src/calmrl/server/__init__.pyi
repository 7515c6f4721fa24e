from .app import build_app as build_app
from .limits import Limits as Limits
from .run import run_server as run_server
