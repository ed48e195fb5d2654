import json
from pathlib import Path

WORDS = ["river", "stone", "cloud", "apple", "house", "piano", "sugar", "tiger"]
rows = ({"question": f"Sing about a {word}.", "answer": word} for word in WORDS)
Path("words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
