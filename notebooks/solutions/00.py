"""Answers of notebook 00."""

SETUP = "import exercises; server, question = exercises.served, 'Name three fruits, please. '"

LIVE = {"00.3"}

SOLUTIONS = {
    "00.1": 'longest_first = ["start", "first", "next"]',
    "00.2": """def tokens_per_second(arrivals):
    return (len(arrivals) - 1) / (arrivals[-1] - arrivals[0])""",
    "00.3": 'body = {"text_input": question, "max_tokens": 12}',
}

_RATE = "def tokens_per_second(arrivals):\n    return "

MUTANTS = {
    "00.1": [
        ("the first token is as quick as the next", 'longest_first = ["start", "next", "first"]', "not as quick"),
        ("weights are loaded for every answer", 'longest_first = ["first", "start", "next"]', "loaded once"),
        ("two names are enough", 'longest_first = ["start", "first"]', "once"),
    ],
    "00.2": [
        ("n instead of n - 1", _RATE + "len(arrivals) / (arrivals[-1] - arrivals[0])", "n - 1 waits"),
        ("first wait counted", _RATE + "len(arrivals) / arrivals[-1]", "counted the wait for the first token"),
        ("clock from the request", _RATE + "(len(arrivals) - 1) / arrivals[-1]", "not at the request"),
        ("seconds per token", _RATE + "(arrivals[-1] - arrivals[0]) / (len(arrivals) - 1)", "its inverse"),
    ],
    "00.3": [
        ("max_tokens counts the prompt, too", 'body = {"text_input": question, "max_tokens": 20}', "more than 12"),
        ("one token is the end", 'body = {"text_input": question, "max_tokens": 11}', "fewer than 12"),
        ("as in ask", 'body = {"text_input": question, "max_tokens": 12, "stream": True}', "carries one"),
        ("the bare prompt", 'body = {"text_input": "Name three fruits.", "max_tokens": 12}', "marks who speaks"),
        ("a number as text", 'body = {"text_input": question, "max_tokens": "12"}', "the server refuses it"),
        ("no limit", 'body = {"text_input": question}', "its own limit"),
        ("tensors", 'body = {"inputs": [question, 12]}', "the body is a dict"),
        ("sampled", 'body = {"text_input": question, "max_tokens": 12, "top_k": 50, "temperature": 3.0}', "another"),
    ],
}
