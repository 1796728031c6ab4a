"""Index pictures while a Triton runs: python build_index.py ADDRESS FOLDER SOURCE ID… (notebook 15 kills it midway).

ADDRESS is Triton's, over gRPC; FOLDER holds the two stores; SOURCE is a word that `catalogue` knows.
"""

import sys

from cliplab import indexing
from cliplab.client import ClipClient
from cliplab.pictures import catalogue

address, folder, source, *ids = sys.argv[1:]
shop = [picture for picture in catalogue(source) if picture.id in ids]
with indexing.Stores(folder) as both, ClipClient(address) as clip:
    indexing.build(
        shop, clip.embed_images, both.vectors, both.documents, encoder=clip.encoder,
        progress=lambda done, total: print(done, "of", total, flush=True),
    )  # fmt: skip
