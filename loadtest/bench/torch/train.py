"""The models of `models.py` as jobs: `entry: train:Job`, with `parameters: {kind, width, momentum}`."""

import ebb
import models


class Job(ebb.Job):
    def model(self):
        return models.build(self.parameters["kind"], self.parameters["width"])

    def loss(self, model, batch):
        images, labels = batch
        return models.summed_loss(model, images, labels), len(labels)

    def optimizer(self, model):
        return models.optimizer(model, self.parameters["momentum"])
