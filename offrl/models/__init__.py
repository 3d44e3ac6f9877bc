"""Networks: encoder -> trunk -> head. Names are imported when first used: torch is slow.

For networks of your own use ``Encoder``, ``MLP``, ``perceptron``, the heads, ``Actor``, which joins
an encoder, a trunk and a head, and ``random_rows``.
"""

from offrl import lazy

__getattr__, __dir__, __all__ = lazy.exporting(
    __name__,
    {
        "offrl.models.act": "ActionChunkingTransformer",
        "offrl.models.critics": "Critics DiscreteCritics DiscreteDistributionalCritics "
        "DistributionalCritics GoalValues PerturbationActor Scalar StateValue normalized",
        "offrl.models.transformer": "DecisionTransformer",
        "offrl.models.denoisers": "Denoiser denoiser_from_config",
        "offrl.models.draws": "random_rows",
        "offrl.models.encoder": "Encoder",
        "offrl.models.heads": "ActionDistribution CategoricalHead Corrected Deterministic "
        "DeterministicHead GMMHead GaussianHead Outputs",
        "offrl.models.nets": "Actor ActorValue actor_from_config mlp_actor mlp_outputs",
        "offrl.models.trunks": "MLP perceptron",
        "offrl.models.vae": "VAE observation_vae_from_config vae_from_config",
        "offrl.models.vision": "check_sight",
        "offrl.models.vq": "BehaviorTransformer ChunkVAE",
    },
)
