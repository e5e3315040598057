"""LoRA with peft: a frozen base and small matrices that are trained. Data: see ../gpt/train.py.

The base is made from a configuration, so that nothing is downloaded; a real one is
`GPT2LMHeadModel.from_pretrained(Path(__file__).parent / "base")` with its folder beside this file.
"""

import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

import ebb


class Job(ebb.Job):
    def model(self):
        vocabulary, length = self.sample["vocabulary"], self.sample["length"]
        configuration = GPT2Config(
            vocab_size=vocabulary, n_positions=length, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
        )
        adapters = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
        return get_peft_model(GPT2LMHeadModel(configuration), adapters)

    def loss(self, model, batch):
        scores, targets = model(input_ids=batch[:, :-1]).logits, batch[:, 1:]
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum"), targets.numel()

    def optimizer(self, model):
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
