"""The script of `e2e.bench.start`: imports what examples/digits does, and reports when that is done, and its memory."""

import json
import os
import time

import sklearn.datasets  # noqa: F401 - found in the source
import torch._dynamo  # noqa: F401 - an optimizer would import it

import perdure.session.session  # noqa: F401
from e2e.bench.starting import private_mib
from perdure.wire import Env

if __name__ == "__main__":
    seconds = time.monotonic() - float(os.environ["BENCH_BEGUN"])
    print(json.dumps([seconds, private_mib("self")]), file=os.fdopen(int(os.environ[Env.REPORT_FD]), "w"))
