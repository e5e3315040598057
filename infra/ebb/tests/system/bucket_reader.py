"""Reads a job's model and its newest checkpoint from the bucket with boto3, and the model by a link without any credentials; prints what was found as JSON.

usage: bucket_reader.py BUCKET PREFIX MODEL_KEY MANIFEST_KEY LINK MODEL_FILE
"""

import json
import sys
import urllib.request

import boto3
import safetensors.numpy
from botocore.config import Config

bucket, prefix, model_key, manifest_key, link, model_file = sys.argv[1:]
# For links of its own; the default is an older signature, which not every server takes.
s3 = boto3.client("s3", config=Config(signature_version="s3v4"))


def whole(key, **options):
    return s3.get_object(Bucket=bucket, Key=f"{prefix}/{key}", **options)["Body"].read()


s3.download_file(bucket, f"{prefix}/{model_key}", model_file)
model = whole(model_key)
manifest = json.loads(whole(manifest_key))
shards = [(shard, whole(shard["key"])) for shard in manifest["shards"]]
folder = f"{prefix}/{manifest_key.rsplit('/', 1)[0]}/"
listed = [found["Key"] for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=folder) for found in page["Contents"]]
by_link = urllib.request.urlopen(link)
own_link = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": f"{prefix}/{model_key}"}, ExpiresIn=60)
print(json.dumps({
    "tensors": sorted(safetensors.numpy.load(model)),
    "part": whole(model_key, Range="bytes=0-7") == model[:8],
    "by_link": by_link.read() == model,
    "type_by_link": by_link.headers["Content-Type"],
    "by_own_link": urllib.request.urlopen(own_link).read() == model,
    "shards": len(shards),
    "whole_shards": all(len(body) == shard["bytes"] for shard, body in shards),
    "elements": sum(tensor.size for _, body in shards for tensor in safetensors.numpy.load(body).values()),
    "replica_len": manifest["replica_len"],
    "listed": sorted(key.removeprefix(folder) for key in listed),
}))
