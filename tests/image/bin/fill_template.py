#!python
"""fill_template.py [-i] FILE key:value,key:value — as NVIDIA's tool is called."""

import sys
from string import Template

in_place, words = "-i" in sys.argv[1:], [word for word in sys.argv[1:] if word != "-i"]
values = dict(pair.split(":", 1) for pair in words[1].split(","))
unasked = {"max_queue_size": 0, "max_queue_delay_microseconds": 0}
text = Template(open(words[0]).read()).safe_substitute(unasked | values)
open(words[0], "w").write(text) if in_place else print(text)
