"""Who signs the heads of a log, and where they are kept, outside of the database."""

from eventlog.audit.heads.local_signer import LocalSigner
from eventlog.audit.heads.remote_signer import RemoteSigner, signer_from

__all__ = ["LocalSigner", "RemoteSigner", "signer_from"]
