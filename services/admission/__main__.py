"""`python -m noria.services.admission --config FILE`."""

import zmq

from noria.proto.base import Service
from noria.services.admission.config import AdmissionConfig, admission_config, admission_policy
from noria.services.admission.public_mailbox import PublicMailbox
from noria.services.admission.service import AdmissionService
from noria.services.admission.storage.journal import open_journal
from noria.services.admission.storage.usage_writer import UsageWriter
from noria.services.admission.tokenizer_pool import TokenizerPool
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import public_mailbox
from noria.shared.actor.mailbox import Mailbox
from noria.shared.config.config import Config
from noria.shared.errors import UserError
from noria.shared.model import model_folder
from noria.shared.model.chat_template import ChatTemplate
from noria.shared.model.tokenizer import Tokenizer
from noria.shared.process.service_process import main, reload, run
from noria.shared.telemetry.telemetry import Telemetry
from noria.shared.usage import database_path


def start(config: Config) -> int:
    """Load the tokenizer and the chat template, then serve until SIGTERM."""
    folder = model_folder.resolve_model_folder(config.model)
    tokenizer = Tokenizer.load(folder)
    template = ChatTemplate.load(folder, tokenizer)
    settings = admission_config(config, folder, has_chat_template=template.exists)
    endpoint = public_mailbox(config.runtime, binding=True)

    def build(actor: Actor, telemetry: Telemetry) -> AdmissionService:
        runtime = config.runtime
        database, journal = open_journal(database_path(runtime), kept=runtime.journal, sync=runtime.journal_sync)
        usage = UsageWriter(database)
        door = _open(endpoint, actor.mailbox, settings)
        pool = TokenizerPool(tokenizer, template, actor.wake)
        shell = AdmissionService(actor, telemetry, door, pool, settings.limits, settings.policy, usage, journal)

        def reread() -> None:
            reload(Service.ADMISSION, config, lambda changed: shell.change_policy(admission_policy(changed)))

        actor.on_reload(reread)
        return shell

    return run(Service.ADMISSION, config, (Service.SCHEDULER, Service.DETOKENIZER), build)


def _open(endpoint: str, mailbox: Mailbox, settings: AdmissionConfig) -> PublicMailbox:
    try:
        return PublicMailbox(endpoint, mailbox.incarnation, settings.message_bytes_max, gate=mailbox.authenticator)
    except zmq.ZMQError as error:
        raise UserError(
            f"cannot bind {endpoint}: {error.strerror}; choose another --runtime-dir or --base-port"
        ) from error


if __name__ == "__main__":
    main(Service.ADMISSION, start)
