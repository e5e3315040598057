"""A `transformers.Trainer` as people write it; its model is made from a configuration, so that nothing is downloaded.

For a model that you have: put its folder beside this file and write `from_pretrained(FOLDER / "my-model")`.
Data: ebb dataset import text docs/architecture.md --format text --length 65
"""

from pathlib import Path

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

FOLDER = Path(__file__).parent


def make_trainer():
    configuration = GPT2Config(vocab_size=256, n_positions=65, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    arguments = TrainingArguments(
        output_dir="unused",
        report_to=[],
        use_cpu=True,
        learning_rate=3e-3,
        warmup_steps=10,
        lr_scheduler_type="cosine",
        weight_decay=0.1,
        max_grad_norm=1.0,  # the job file says the same: gradient_clip_norm
    )
    # Without a train_dataset it trains on the job file's `dataset:`; rows of tokens become input_ids and labels.
    return Trainer(model=GPT2LMHeadModel(configuration), args=arguments)
