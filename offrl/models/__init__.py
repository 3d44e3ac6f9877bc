"""Networks: encoder -> trunk -> head. Names are imported when first used: torch is slow."""

from offrl import lazy

_EXPORTS = {
    "BehaviorTransformer": "offrl.models.vq",
    "ChunkVAE": "offrl.models.vq",
    "ActionChunkingTransformer": "offrl.models.act",
    "Actor": "offrl.models.nets",
    "ActorValue": "offrl.models.actor_value",
    "actor_from_config": "offrl.models.nets",
    "mlp_actor": "offrl.models.nets",
    "Denoiser": "offrl.models.denoisers",
    "denoiser_from_config": "offrl.models.denoisers",
    "DecisionTransformer": "offrl.models.decision_transformer",
    "Encoder": "offrl.models.encoder",
    "MLP": "offrl.models.trunks",
    "Critics": "offrl.models.critics",
    "DistributionalCritics": "offrl.models.critics",
    "DiscreteCritics": "offrl.models.critics",
    "DiscreteDistributionalCritics": "offrl.models.critics",
    "GoalValues": "offrl.models.critics",
    "PerturbationActor": "offrl.models.critics",
    "Scalar": "offrl.models.critics",
    "normalized": "offrl.models.critics",
    "StateValue": "offrl.models.critics",
    "Corrected": "offrl.models.heads",
    "Deterministic": "offrl.models.heads",
    "DeterministicHead": "offrl.models.heads",
    "GaussianHead": "offrl.models.heads",
    "GMMHead": "offrl.models.heads",
    "Outputs": "offrl.models.heads",
    "random_rows": "offrl.models.heads",
    "VAE": "offrl.models.vae",
    "check_sight": "offrl.models.vision",
    "vae_from_config": "offrl.models.vae",
    "observation_vae_from_config": "offrl.models.vae",
}
__all__ = sorted(_EXPORTS)

__getattr__, __dir__ = lazy.exporting(__name__, _EXPORTS)
