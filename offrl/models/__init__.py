"""Networks: encoder -> trunk -> head. Names are imported when first used: torch is slow."""

from offrl import lazy

__getattr__, __dir__, __all__ = lazy.exporting(
    __name__,
    {
        "offrl.models.act": "ActionChunkingTransformer",
        "offrl.models.actor_value": "ActorValue",
        "offrl.models.critics": "Critics DiscreteCritics DiscreteDistributionalCritics "
        "DistributionalCritics GoalValues PerturbationActor Scalar StateValue normalized",
        "offrl.models.transformer": "DecisionTransformer",
        "offrl.models.denoisers": "Denoiser denoiser_from_config",
        "offrl.models.encoder": "Encoder",
        "offrl.models.heads": "Corrected Deterministic DeterministicHead GMMHead GaussianHead "
        "Outputs random_rows",
        "offrl.models.nets": "Actor actor_from_config mlp_actor mlp_outputs",
        "offrl.models.trunks": "MLP",
        "offrl.models.vae": "VAE observation_vae_from_config vae_from_config",
        "offrl.models.vision": "check_sight",
        "offrl.models.vq": "BehaviorTransformer ChunkVAE",
    },
)
