"""Rights on Kafka as docs/kafka.md and docs/demand.md give them, and what a fleet's user may publish, with a stock client.

rights.py grant BROKERS LOG_PREFIX NEEDS_PREFIX FLEET...   makes the fleets' topics; each fleet's user is called like the fleet
rights.py publish SASL_BROKERS USER TOPIC VALUE            prints `published`, or the name of the error
"""

import sys

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, NewTopic, ResourcePatternType, ResourceType

LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP


def grant(brokers, log, needs, *fleets):
    admin = AdminClient({"bootstrap.servers": brokers})
    given = []

    def allow(user, kind, name, pattern, *operations):
        given.extend(AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW) for operation in operations)

    may = AclOperation
    allow("ebb", TOPIC, f"{log}.", PREFIXED, may.CREATE, may.DESCRIBE_CONFIGS, may.READ, may.WRITE)
    allow("ebb", GROUP, "ebb-assigns-by-hand", LITERAL, may.DESCRIBE)
    allow("ebb", TOPIC, f"{needs}.", PREFIXED, may.READ, may.DESCRIBE)
    allow("ebb", GROUP, needs, LITERAL, may.READ)
    for fleet in fleets:
        allow(fleet, TOPIC, f"{needs}.{fleet}", LITERAL, may.WRITE, may.DESCRIBE)
    for done in admin.create_topics([NewTopic(f"{needs}.{fleet}", 1, 1) for fleet in fleets]).values():
        done.result()
    for done in admin.create_acls(given).values():
        done.result()


def publish(brokers, user, topic, value):
    ended = []
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": user}
    producer = Producer({"bootstrap.servers": brokers, "message.timeout.ms": 20_000, **login})
    producer.produce(topic, value, callback=lambda error, _: ended.append(error))
    producer.flush(30)
    error = ended[0]
    refused = error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    print("refused" if refused else error or "published")


{"grant": grant, "publish": publish}[sys.argv[1]](*sys.argv[2:])
