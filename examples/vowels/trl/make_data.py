import json
from pathlib import Path

WORDS = ["river", "stone", "cloud", "apple", "house", "piano", "sugar", "tiger"]
prompts = ([{"role": "user", "content": f"Sing about a {word}."}] for word in WORDS)
Path("words.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
