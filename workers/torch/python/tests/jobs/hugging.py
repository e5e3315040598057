"""A tiny causal model and a tiny classifier in `transformers.Trainer`s, made of configurations."""

import torch
import transformers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

VOCABULARY, LENGTH = 37, 10


class Texts(torch.utils.data.Dataset):
    def __init__(self, classes=None):
        generator = torch.Generator().manual_seed(4)
        self.tokens = torch.randint(0, VOCABULARY, (70, LENGTH), generator=generator)
        self.classes = classes

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, row):
        tokens = self.tokens[row]
        if self.classes:
            return {"input_ids": tokens, "labels": int(tokens.sum()) % self.classes}
        labels = tokens.clone()
        labels[: int(tokens[0]) % 5] = -100  # rows weigh differently
        return {"input_ids": tokens, "labels": labels}


def arguments(**named):
    return TrainingArguments(output_dir="/nonexistent", report_to=[], use_cpu=True, learning_rate=1e-3, warmup_steps=2, **named)


def causal_model():
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )


def causal():
    return Trainer(model=causal_model(), args=arguments(), train_dataset=Texts(), data_collator=default_data_collator)


def smoothed():
    return Trainer(
        model=causal_model(),
        args=arguments(label_smoothing_factor=0.1, bf16=True),
        train_dataset=Texts(),
        data_collator=default_data_collator,
    )


def classifier():
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        num_labels=3,
    )
    return Trainer(
        model=BertForSequenceClassification(config), args=arguments(), train_dataset=Texts(3), data_collator=default_data_collator
    )


class Mine(Trainer):
    """A subclass that makes all of itself, with a loss of its own."""

    def __init__(self):
        super().__init__(model=causal_model(), args=arguments(), train_dataset=Texts(), data_collator=default_data_collator)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(input_ids=inputs["input_ids"])
        scores, labels = outputs.logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten()
        return torch.nn.functional.cross_entropy(scores, labels, ignore_index=-100)


def lora():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(causal_model(), LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True))
    return Trainer(model=model, args=arguments(), train_dataset=Texts(), data_collator=default_data_collator)


class OwnStep(Mine):
    def training_step(self, *args, **named):
        return super().training_step(*args, **named)


class Odd(Mine):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs)
        return loss if num_items_in_batch is None else loss / num_items_in_batch + loss


def stopping():
    trainer = causal()
    trainer.add_callback(transformers.EarlyStoppingCallback(1))
    return trainer


def accumulating():
    return Trainer(model=causal_model(), args=arguments(gradient_accumulation_steps=2), train_dataset=Texts())
