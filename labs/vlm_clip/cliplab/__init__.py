"""The modules of the lab "pictures and sentences in one space"; the notebooks and scripts beside this folder use them."""
