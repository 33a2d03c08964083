"""Addresses without their passwords."""

import pytest

from keras_dml._common.errors import argument_error, without_passwords

ADDRESSES = [
    ("http://me:SECRET@host:80/a", "http://…@host:80/a"),
    ("http://SECRET@host", "http://…@host"),
    ("http://me:SEC@RET/SECRET@host and (http://a:SECRET@b)", "http://…@host and (http://…@b)"),
    ("s3://KEY:SECRET@bucket/a@b.jpg", "s3://…@b.jpg"),
    ("postgresql://me:SECRET@/name?host=/run", "postgresql://…@/name?host=/run"),
    ("https://host/?api_key=SECRET&x=1&sslpassword=SECRET", "https://host/?api_key=…&x=1&sslpassword=…"),
    ("s3://b?session_token=SECRET&region=x", "s3://b?session_token=…&region=x"),
    ("https://host/?X-Amz-Signature=SECRET", "https://host/?X-Amz-Signature=…"),
    ("host=h password='SECRET \\' SECRET' user=me", "host=h password=… user=me"),
    ('"http://a:SECRET@b", "c@d"', '"http://…@b", "c@d"'),
    # Nothing to hide.
    ("s3://bucket/a@b.jpg?endpoint=x", None),
    ("hf://me/model@main pooling=token tokens=3 a//b", None),
    ("http://127.0.0.1:5000/#/experiments/7", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shown"), ADDRESSES)
def test_an_address_has_no_password(text, shown):
    assert without_passwords(text) == (shown or text)
    assert without_passwords(f"'{text}'.") == f"'{shown or text}'."


def test_a_message_that_is_cut_has_no_password():
    address = "http://" + 150 * "a" + ":" + 100 * "SECRET" + "@host"
    assert "SECRET" not in str(argument_error("name", "a repository", address))
