"""Run the detokenizer alone: `python -m noria.services.detokenizer --config FILE`."""

from noria.proto.base import Service
from noria.services.detokenizer.config import detokenizer_config
from noria.services.detokenizer.service import DetokenizerService, load_vocabulary
from noria.shared.config.config import Config
from noria.shared.process.service_process import main, run


def start(config: Config) -> int:
    """Load the vocabulary, then serve until SIGTERM."""
    vocabulary = load_vocabulary(detokenizer_config(config).folder)
    return run(
        Service.DETOKENIZER,
        config,
        (Service.SCHEDULER, Service.ADMISSION),
        lambda actor, telemetry: DetokenizerService(actor, telemetry, vocabulary),
    )


if __name__ == "__main__":
    main(Service.DETOKENIZER, start)
