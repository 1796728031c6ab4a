"""The modules of the lab "pictures and sentences in one space", for the notebooks and scripts beside this folder."""
