from datasets import load_dataset
from rewards import vowels
from trl import GRPOConfig, GRPOTrainer

trainer = GRPOTrainer(
    model="model",
    reward_funcs=vowels,
    train_dataset=load_dataset("json", data_files="words.jsonl", split="train"),
    args=GRPOConfig(
        output_dir="out",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        num_generations=8,
        max_completion_length=16,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        max_steps=15,
    ),
)
trainer.train()
