"""Access control: keys, the principals that hold them, clients' credentials, and endpoints.

Read `principal` first, then `key_file` and `credentials`, which determine a request's principal.
"""

from relay.access.credentials import PRESENTED_WITH, Credentials
from relay.access.endpoints import CURVE, check_endpoint, ipc_endpoint, is_curve
from relay.access.identity import (
    TOKEN_FILE,
    CurvePair,
    Identity,
    KeyDocument,
    TokenSource,
    identity_of,
    local_identity,
    read_key_file,
)
from relay.access.key_file import (
    LOCAL,
    StoredKey,
    create_key,
    ensure_local_key,
    keys_version,
    person_of,
    read_keys,
    revoke_key,
    rotate_key,
    server_pair,
    set_person,
)
from relay.access.principal import ALL_SCOPES, PUBLIC, Origin, Principal, Scope, publisher_for_all

__all__ = [
    "ALL_SCOPES",
    "CURVE",
    "LOCAL",
    "PRESENTED_WITH",
    "PUBLIC",
    "TOKEN_FILE",
    "Credentials",
    "CurvePair",
    "Identity",
    "KeyDocument",
    "Origin",
    "Principal",
    "Scope",
    "StoredKey",
    "TokenSource",
    "check_endpoint",
    "create_key",
    "ensure_local_key",
    "identity_of",
    "ipc_endpoint",
    "is_curve",
    "keys_version",
    "local_identity",
    "person_of",
    "publisher_for_all",
    "read_key_file",
    "read_keys",
    "revoke_key",
    "rotate_key",
    "server_pair",
    "set_person",
]
