"""Print as JSON what tasks of an engine read from S3, with credentials and without.

python tests/adapters/s3_tasks_program.py ray|spark ENDPOINT FOLDER

The environment has no credentials. So a task can read private objects only with the credentials that the program
passes with `Remote`.
"""

import gzip
import json
import os
import pickle
import sys
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import s3fs
from cntkio import CTFDeserializer, Remote, StreamDef, StreamDefs
from cntkio.convert import corpus_chunks

X = StreamDefs(x=StreamDef(field="x", shape=2))
PATTERN = "s3://bucket/train-*"
RETRIES = 1  # s3fs repeats each request, too, and waits long for an end point that does not exist
POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}


def require_credentials(endpoint: str, *, are_required: bool) -> None:
    num_free_requests = b"0" if are_required else b"1000000"
    request = urllib.request.Request(
        f"{endpoint}/moto-api/reset-auth", num_free_requests, {"Content-Type": "text/plain"}
    )
    urllib.request.urlopen(request, timeout=60).close()


def new_credentials(endpoint: str) -> dict[str, str]:
    """Return the credentials of a new user who may read and write all objects."""
    from botocore.session import Session

    account = {"aws_access_key_id": "first", "aws_secret_access_key": "first", "region_name": "us-east-1"}
    client = Session().create_client("iam", endpoint_url=endpoint, **account)
    client.create_user(UserName="reader")
    client.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=json.dumps(POLICY))
    key = client.create_access_key(UserName="reader")["AccessKey"]
    return {"key": key["AccessKeyId"], "secret": key["SecretAccessKey"]}


Load = Callable[[str, dict[str, Any]], Callable[[], list[int]]]
"""Opens a corpus with storage options, and returns a function that reads its keys in tasks."""


def of_ray() -> Load:
    import cntkio.ray
    import ray

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False

    def load(path: str, options: dict[str, Any]) -> Callable[[], list[int]]:
        remote = Remote(storage_options=options, num_retries=RETRIES)
        rows = cntkio.ray.read_ctf(path, X, remote=remote, chunk_size_in_bytes=500, override_num_blocks=3)
        return lambda: sorted(row["key"] for row in rows.iter_rows())

    return load


def of_spark() -> Load:
    import cntkio.spark
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.python.authenticate.socketTimeout", "200s").getOrCreate()
    cntkio.spark.register(spark)
    streams = json.dumps({"x": {"field": "x", "shape": 2}})

    def load(path: str, options: dict[str, Any]) -> Callable[[], list[int]]:
        remote = json.dumps({"storage_options": options, "num_retries": RETRIES})
        given = {"streams": streams, "chunk_size_in_bytes": 500, "num_partitions": 3, "remote": remote}
        frame = spark.read.format("cntkio.ctf").options(**given).load(path)
        frame.explain(extended=True)  # prints the plan
        return lambda: sorted(row["key"] for row in frame.collect())

    return load


def error_of(work: Callable[[], object]) -> str:
    try:
        return f"no error: {work()}"
    except Exception as error:
        return f"{error}\n{error.__cause__}"


def main(engine: str, endpoint: str, folder: Path) -> dict[str, Any]:
    text = b"".join(b"%d |x %d 1\n" % (key, key) for key in range(300))
    middle = text.index(b"\n150 ") + 1
    place = {"endpoint_url": endpoint}
    first = s3fs.S3FileSystem(key="first", secret="first", **place)
    first.mkdir("bucket")
    first.pipe_file("bucket/train-0.ctf", text[:middle])
    first.pipe_file("bucket/train-1.ctf.gz", gzip.compress(text[middle:]))
    first.mkdir("public", acl="public-read")
    first.pipe_file("public/a.ctf", text, ACL="public-read")
    credentials = new_credentials(endpoint)
    load = of_ray() if engine == "ray" else of_spark()

    def read(path: str, options: dict[str, Any]) -> list[int]:
        return load(path, options)()

    found: dict[str, Any] = {"errors": {}}
    found["anonymous"] = read("s3://public/a.ctf", {"anon": True, **place})
    found["errors"]["refused"] = error_of(lambda: read("s3://bucket/train-0.ctf", {"anon": True, **place}))

    require_credentials(endpoint, are_required=True)  # the server refuses requests that are not signed
    found["credentials"] = read(PATTERN, {**credentials, **place})
    wrong = {**place, "key": credentials["key"], "secret": "not-the-secret-but-a-secret"}
    for name, path, options in (
        ("wrong", "s3://bucket/train-0.ctf", {**wrong, "key": "AKIAWRONGWRONGWRONG0"}),
        ("missing", "s3://bucket/none.ctf", {**credentials, **place}),
        ("nowhere", "s3://bucket/train-0.ctf", {**credentials, "endpoint_url": "http://127.0.0.1:1"}),
        ("no match", "s3://bucket/none-*", {**credentials, **place}),
        ("misspelled", "s3://bucket/train-0.ctf", {**place, "sekret": credentials["secret"]}),
    ):  # fmt: skip
        found["errors"][name] = error_of(partial(read, path, options))
    later = load(PATTERN, {**credentials, **place})
    corpus = CTFDeserializer(PATTERN, X, remote=Remote(storage_options={**credentials, **place}))
    chunks = corpus_chunks(corpus)
    found["texts"] = [repr(corpus), repr(chunks), str(chunks), repr(chunks.split(1))]
    s3fs.S3FileSystem(**credentials, **place).rm("bucket/train-1.ctf.gz")
    found["errors"]["deleted"] = error_of(later)
    found["secrets"] = [*credentials.values(), wrong["secret"]]

    require_credentials(endpoint, are_required=False)
    os.environ |= {"AWS_ACCESS_KEY_ID": "OF-ENVIRONMENT", "AWS_SECRET_ACCESS_KEY": "SECRET-OF-ENVIRONMENT"}
    chunks = corpus_chunks(CTFDeserializer(PATTERN, X, remote=Remote(storage_options=place)))
    found["of environment"] = b"OF-ENVIRONMENT" in pickle.dumps(chunks)
    return found


if __name__ == "__main__":
    print("\n" + json.dumps(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
