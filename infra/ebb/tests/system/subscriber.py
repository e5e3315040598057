"""Reads public events from a Kafka topic with stock clients until one of a type has come about a subject; prints each as a line of JSON.

usage: subscriber.py BROKERS TOPIC TYPE SUBJECT
"""

import json
import sys

from cloudevents.core.bindings import kafka
from confluent_kafka import Consumer

brokers, topic, last_type, last_subject = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": brokers, "group.id": "subscriber", "auto.offset.reset": "earliest", "enable.auto.commit": False})
consumer.subscribe([topic])
while True:
    record = consumer.poll(60)
    if record is None:
        sys.exit("nothing came for a minute")
    if record.error():
        sys.exit(str(record.error()))
    headers = dict(record.headers())
    event = kafka.from_binary_event(kafka.KafkaMessage(headers=headers, key=record.key(), value=record.value()))
    said = {
        "id": event.get_id(),
        "source": event.get_source(),
        "type": event.get_type(),
        "subject": event.get_subject(),
        "time": event.get_time().isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "data": event.get_data(),
        "key": record.key().decode(),
    }
    print(json.dumps(said), flush=True)
    if (said["type"], said["subject"]) == (last_type, last_subject):
        break
consumer.close()
