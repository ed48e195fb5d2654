from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

WORDS = ["river", "stone", "cloud", "apple", "house", "piano", "sugar", "tiger"]
rows = [
    {
        "data_source": "vowels",
        "prompt": [{"role": "user", "content": f"Sing about a {word}."}],
        "reward_model": {"style": "rule", "ground_truth": word},
        "extra_info": {"index": number},
    }
    for number, word in enumerate(WORDS)
]
pq.write_table(pa.Table.from_pylist(rows), "train.parquet")
Path("words.txt").write_text("".join(row["prompt"][0]["content"] + "\n" for row in rows))
