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


def measured():
    return Trainer(model=causal_model(), args=arguments(), train_dataset=Texts(), compute_metrics=lambda predictions: {"accuracy": 1.0})


def reduced():
    return Trainer(model=causal_model(), args=arguments(), train_dataset=Texts(), preprocess_logits_for_metrics=lambda scores, labels: scores)


class OwnEvaluate(Mine):
    def evaluate(self, *args, **named):
        return super().evaluate(*args, **named)


class OwnPrediction(Mine):
    def prediction_step(self, *args, **named):
        return super().prediction_step(*args, **named)


class OwnLog(Mine):
    def log(self, *args, **named):
        return super().log(*args, **named)


class OwnInputs(Mine):
    def _prepare_inputs(self, inputs):
        return super()._prepare_inputs(inputs)


def best():
    return Trainer(
        model=causal_model(),
        args=arguments(load_best_model_at_end=True, eval_strategy="steps", save_strategy="steps"),
        train_dataset=Texts(),
        eval_dataset=Texts(),
    )


def evaluated():
    return Trainer(model=causal_model(), args=arguments(eval_strategy="epoch"), train_dataset=Texts(), eval_dataset=Texts())


def in_order():
    return Trainer(model=causal_model(), args=arguments(train_sampling_strategy="sequential"), train_dataset=Texts())


class Tracker(transformers.TrainerCallback):
    """As one of those that a Trainer adds for whatever tracker is installed."""

    __module__ = "transformers.integrations.integration_utils"


def tracked():
    trainer = causal()
    trainer.add_callback(Tracker())
    return trainer


class CountsLosses(Mine):
    """In the Trainer, which nobody carries along."""

    losses = 0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self.losses += 1
        return super().compute_loss(model, inputs)


class Collator:
    """With a generator of its own, as those for masked tokens have."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, rows):
        batch = default_data_collator(rows)
        batch["input_ids"] = batch["input_ids"].roll(int(torch.randint(0, 3, (), generator=self.generator)))
        return batch


def own_collator():
    return Trainer(model=causal_model(), args=arguments(), train_dataset=Texts(), data_collator=Collator())


def masked():
    """PyTorch's own collator for that, told a seed."""
    from transformers.data.data_collator import DataCollatorForLanguageModeling

    class Tokenizer:
        mask_token, mask_token_id, pad_token, all_special_ids = "?", 1, "_", [0]

        def __len__(self):
            return VOCABULARY

        def get_special_tokens_mask(self, tokens, already_has_special_tokens=False):
            return [0] * len(tokens)

        def convert_tokens_to_ids(self, token):
            return 1

        def pad(self, rows, **named):
            return default_data_collator([{"input_ids": row["input_ids"]} for row in rows])

    return Trainer(
        model=causal_model(), args=arguments(), train_dataset=Texts(), data_collator=DataCollatorForLanguageModeling(Tokenizer(), seed=7)
    )


def plain_causal(**named):
    """Without chance, with whole powers of two of labels in a batch of four rows: what a Trainer divides by then changes no bits."""
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return Trainer(
        model=GPT2LMHeadModel(config), args=arguments(max_grad_norm=0.0, **named), train_dataset=Plain(), data_collator=default_data_collator
    )


class Plain(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, row):
        tokens = torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(row))
        return {"input_ids": tokens, "labels": torch.cat([torch.full((LENGTH - 8,), -100), tokens[-8:]])}


def plain_classifier(**named):
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=LENGTH, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return Trainer(
        model=BertForSequenceClassification(config),
        args=arguments(max_grad_norm=0.0, weight_decay=0.01, **named),
        train_dataset=Texts(3),
        data_collator=default_data_collator,
    )


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        ids = [(index * k) % 30 + 2 for k in range(1, 6)]
        return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": ids[::-1]}


def translator(**named):
    configuration = transformers.T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0
    )
    arguments = transformers.Seq2SeqTrainingArguments(output_dir="unused", use_cpu=True, report_to=[], **named)
    return transformers.Seq2SeqTrainer(
        model=transformers.T5ForConditionalGeneration(configuration), args=arguments, train_dataset=Pairs()
    )


def generating():
    return translator(predict_with_generate=True)
