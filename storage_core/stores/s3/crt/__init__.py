"""Frequent requests to S3, sent by AWS's C library (AWS CRT): half of boto3's processor time.

What looks odd here answers to what CRT was seen to do (ADR 19 has the decision).

- Every request is named GetObject (`transport`). Under its own name CRT looks for errors in answers with
  status 200, which leave the outcome unknown, and reports them as it reports a 503, which is a refusal.
- Python connects once before CRT does (`connections.connect`). CRT has one error for a connection that was
  not made and for one that broke, and reports an untrusted certificate 10 to 30 s late.
- Sockets are opened and closed before CRT starts: where its threads get no descriptors, the process ends.
- Buckets behind a proxy are left to boto3 (`endpoint`): CRT waits for a silent tunnel for 900 s. It cannot
  be kept from the variables for proxies, which it reads by rules of its own.
- A 503 is a refusal only of AWS's own hosts: CRT does not show the answer, and a proxy may have sent it.
- Large ranges are left to boto3: CRT copies a body more often. Documents make no tree (`document`).
- A fork leaves CRT's objects to its parent: one that freed them ended with a segmentation fault.
"""
