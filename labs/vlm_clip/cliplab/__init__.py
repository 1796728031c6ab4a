"""The modules of the lab "pictures and sentences in one space", for the notebooks and scripts beside this folder."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else it tells a notebook that pymilvus pings an idle server too often
