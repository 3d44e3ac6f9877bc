"""Names and signatures that users' scripts and papers rely on. Changing one is a decision."""

import ast
import inspect
import json
import re
from importlib import import_module
from pathlib import Path

import pytest

import offrl
from offrl.online import Trainer

SIGNATURES = {
    "offrl.algo_factory": "algo_name, config, obs_key_shapes, ac_dim, device",
    "offrl.register_algo": "config_class",
    "offrl.register_algo_factory_func": "name",
    "offrl.config_factory": "algo_name, overrides=None",
    "offrl.policy_from_checkpoint": (
        "ckpt_path=None, ckpt_dict=None, device=None, verbose=False, modules=()"
    ),
    "offrl.maybe_dict_from_checkpoint": "ckpt_path=None, ckpt_dict=None",
    "offrl.config_from_checkpoint": "algo_name=None, ckpt_path=None, ckpt_dict=None, modules=()",
    "offrl.env_from_checkpoint": (
        "ckpt_path=None, ckpt_dict=None, env_name=None, verbose=False, modules=()"
    ),
    "offrl.RolloutPolicy": "algo, batch_size=None, instruction=None, executor=None",
    "offrl.RolloutPolicy.start_episode": "self, env=0, seed=None",
    "offrl.RolloutPolicy.__call__": "self, obs, goal=None, reward=None",
    "offrl.RolloutPolicy.act": "self, obs_by_env, goal_by_env=None, reward_by_env=None",
    "offrl.RolloutPolicy.subgoal": "self, env=0",
    "offrl.Trainer": "config, run=None",
    "offrl.Trainer.__call__": "self",
    "offrl.Trainer.state": "self, resumes=True",
    "offrl.Trainer.restore": "self, state",
    "offrl.training.train": "config, run=None, interrupts=None, config_file=None",
    "offrl.training.TaggedFiles": "trainer, config_file=None",
    "offrl.evaluation.watch.watch": "policy, env, requests, film=None",
    "offrl.online.Agent": (
        "cfgs, model=None, model_file=None, device=None, log_level='info', obs_ndim=1"
    ),
    "offrl.online.Agent.init": "self, model_file",
    "offrl.online.Agent.reset": "self, terminated=False",
    "offrl.online.Agent.augment_state": "self, state",
    "offrl.online.Agent.append_state": "self, state",
    "offrl.online.Agent.action": "self, state, deterministic=False",
    "offrl.online.Agent.optimize": "self",
    "offrl.online.Agent.train": "self, env=None, train_cfgs=None, gitsha=None, model_dest=None",
    "offrl.online.Agent.play": "self, env=None, test_cfgs=None, gitsha=None",
    "offrl.online.Agent.infer_action": "self, state, use_explore",
    "offrl.online.Agent.handle_env_feedback": (
        "self, next_raw_state, reward, done, info, use_explore"
    ),
    "offrl.online.Algorithm": "model_info=None, alg_config=None",
    "offrl.online.Algorithm.prepare_data": "self, train_data, **kwargs",
    "offrl.online.Algorithm.train_ready": "self, total_count, **kwargs",
    "offrl.online.Algorithm.checkpoint_ready": "self, train_count, **kwargs",
    "offrl.online.Algorithm.update_weights_map": "self, agent_in_group, agent_in_env",
    "offrl.online.Algorithm.save": "self, model_path, model_index",
    "offrl.online.Algorithm.restore": "self, model_name=None, model_weights=None",
    "offrl.online.Environment": "cfgs, play=False",
    "offrl.online.Environment.step": "self, action, agent_index=0",
    "offrl.online.Environment.update_env": "self, update_fn, **kwargs",
    "offrl.training.Checkpointer": "trainer",
    "offrl.training.Evaluator": "trainer",
    "offrl.training.Logger": "trainer",
    "offrl.training.Progress": "trainer",
    "offrl.training.Proxies": "trainer",
    "offrl.training.RunFolder.open": "path",
    "offrl.algos.Algo": "config, obs_spec, ac_dim, device",
    "offrl.algos.Algo.process_batch_for_training": "self, batch",
    "offrl.algos.Algo.train_on_batch": "self, batch, epoch, validate=False",
    "offrl.algos.Algo.update": "self, batch",
    "offrl.algos.Algo.optimize": "self, name, loss, max_grad_norm=None, measures=True",
    "offrl.algos.Algo.log_info": "self, info",
    "offrl.algos.Algo.on_epoch_end": "self, epoch",
    "offrl.algos.Algo.serialize": "self",
    "offrl.algos.Algo.deserialize": "self, state, load_optimizers=True",
    "offrl.algos.Algo.inspect_data": "self, values",
    "offrl.algos.Algo.set_statistics": "self, obs, actions",
    "offrl.algos.PolicyAlgo.get_action": "self, obs_dict, goal_dict=None",
    "offrl.algos.PolicyAlgo.action_distribution": "self, obs, goal=None, state=None",
    "offrl.algos.PolicyAlgo.subgoal_of": "self, state",
    "offrl.algos.ValueAlgo.get_state_value": "self, obs_dict, goal_dict=None",
    "offrl.algos.ValueAlgo.get_state_action_value": "self, obs_dict, actions, goal_dict=None",
    "offrl.algos.PlannerAlgo.get_subgoal_predictions": "self, obs_dict, goal_dict=None",
    "offrl.algos.PlannerAlgo.sample_subgoals": "self, obs_dict, goal_dict=None, num_samples=1",
    "offrl.data.sequence.SequenceDataset": (
        "hdf5_path, obs_keys, action_keys=('actions',), "
        "dataset_keys=('actions', 'rewards', 'dones'), action_config=None, frame_stack=1, "
        "seq_length=1, pad_frame_stack=True, pad_seq_length=True, get_pad_mask=False, "
        "goal_mode=None, hdf5_cache_mode='all', hdf5_use_swmr=True, hdf5_normalize_obs=False, "
        "filter_by_attribute=None, load_next_obs=True, demo_limit=None, top_share=None, "
        "action_stats=None, rewards=None, reward_stats=None, constants=None, discount=1.0, "
        "goal_shares=None, goal_discount=0.99, goal_rewards=False, subgoal_steps=None, "
        "cache_gb=None, cache_dir=None, num_readers=0, images=None, instructions=None, "
        "obs_steps=None"
    ),
    "offrl.data.sequence.SequenceDataset.get_batch": "self, indices, draws=None",
    "offrl.data.loader.BatchLoader": "dataset, batch_size, seed, num_workers=0, weights=None",
    "offrl.DemoWriter": (
        "path, env_args=None, compression=None, provenance=None, resume=False, durable=True, "
        "chunk_bytes=65536"
    ),
    "offrl.DemoWriter.write": "self, trajectory, **attributes",
    "offrl.DemoWriter.annotate": "self, **attributes",
    "offrl.DemoWriter.write_mask": "self, filter_key, demos",
    "offrl.DemoWriter.write_split": "self, valid_fraction=0.1, seed=0",
    "offrl.data.writer.DemoWriter": (
        "path, env_args=None, compression=None, provenance=None, resume=False, durable=True, "
        "chunk_bytes=65536"
    ),
    "offrl.envs.make_env": "env_args, obs_keys=None",
    "offrl.envs.robomimic_face.RobomimicFace": "env",
    "offrl.envs.robomimic_face.RobomimicFace.reset": "self, seed=None",
    "offrl.envs.robomimic_face.RobomimicFace.render": (
        "self, mode='human', height=None, width=None, camera_name=None"
    ),
    "offrl.envs.workers.EnvPool": "env_args, num_workers=None, timeout=300.0, gl_backend=None",
    "offrl.envs.workers.RayPool": "env_args, num_workers=None, timeout=300.0, gl_backend=None",
    "offrl.envs.workers.pools": "address",
    "offrl.cluster.connected": "address, num_cpus=None",
    "offrl.training.submit": "configs, address, num_threads=None",
    "offrl.envs.workers.EpisodeRequest": (
        "seed, horizon, terminate_on_success=True, frame_every=None, record=False"
    ),
    "offrl.evaluation.evaluate.evaluate": "policy, pool, requests",
    "offrl.evaluation.summarize": "results",
    "offrl.acting.Subgoal": "positions, steps_left",
    "offrl.acting.rollout": "policy, env, horizon, seed=None, terminate_on_success=True",
    "offrl.language.embed": "sentences",
    "offrl.testing.check_algo": "name, config=None",
}
NAMES = [
    "offrl.__version__",
    "offrl.algos.BC",
    "offrl.algos.BC_GMM",
    "offrl.algos.BC_Gaussian",
    "offrl.algos.BC_RNN",
    "offrl.algos.BC_RNN_GMM",
    "offrl.algos.BC_Transformer",
    "offrl.algos.BC_Transformer_GMM",
    "offrl.algos.BC_VAE",
    "offrl.algos.BCQ",
    "offrl.algos.BCQ_Distributional",
    "offrl.algos.CQL",
    "offrl.algos.IQL",
    "offrl.algos.TD3_BC",
    "offrl.algos.HierarchicalAlgo.current_subgoal",
    "offrl.algos.base.PolicyAlgo",
    "offrl.algos.base.register_algo_factory_func",
    "offrl.config.AlgoConfig",
    "offrl.config.OptimConfig",
    "offrl.registry.ALGOS",
    "offrl.registry.BACKBONES",
    "offrl.registry.CORES",
    "offrl.registry.ENVS",
    "offrl.registry.EXPERTS",
    "offrl.registry.MODALITIES",
    "offrl.registry.POOLINGS",
    "offrl.registry.RANDOMIZERS",
    "offrl.rollout.COLLECTION_SEEDS",
    "offrl.specs.Modality",
]


def find(path):
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(path)


@pytest.mark.parametrize(("path", "signature"), SIGNATURES.items(), ids=SIGNATURES)
def test_a_signature_is_what_it_was(path, signature):
    parameters = inspect.signature(find(path)).parameters.values()
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    assert ", ".join(map(str, plain)) == signature


@pytest.mark.parametrize("path", NAMES)
def test_a_name_is_where_it_was(path):
    find(path)


def test_all_that_is_exported_is_there():
    import offrl

    for name in offrl.__all__:
        assert getattr(offrl, name) is not None


# -- in a REPL and in an editor --------------------------------------------------------------------


def test_packages_list_what_is_theirs_and_nothing_else():
    shown = {name for name in dir(offrl) if not name.startswith("__")}
    assert {*offrl.__all__} <= shown
    assert not {"Any", "import_module", "lazy", "TYPE_CHECKING"} & (shown | {*dir(offrl.config)})
    assert {"Algo", "BC_RNN_GMM", "algo_factory"} <= {*dir(offrl.algos)}
    assert "Encoder" in dir(offrl.models) and "config_factory" in dir(offrl.config)


def test_editors_see_the_names_that_are_imported_when_they_are_used():
    tree = ast.parse(Path(offrl.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    named = {alias.asname: line.module for line in block.body for alias in line.names}
    assert sorted(named) == offrl.__all__
    for name, module in named.items():
        assert getattr(offrl, name) is getattr(import_module(module), name)


@pytest.mark.parametrize(
    ("package", "name", "meant"),
    [
        (offrl, "polcy_from_checkpoint", "policy_from_checkpoint"),
        (offrl.algos, "BC_RNNN", "BC_RNN"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest(package, name, meant):
    with pytest.raises(AttributeError, match=f"{name}.*{meant}"):
        getattr(package, name)
    assert not hasattr(package, "nothing_like_it")


def test_what_is_made_shows_what_it_is(trained_run):
    (file,) = trained_run.glob("config-*.json")
    config = offrl.config_factory("bc", {"train": {"batch_size": 7}})
    assert repr(config) == "Config(algo_name='bc', train=TrainConfig(batch_size=7))"
    policy, _ = offrl.policy_from_checkpoint(trained_run / "last.pth")
    size = sum(x.numel() for x in policy.policy.nets.parameters())
    algo = (
        f"BC(position [3], speed [2] -> actions [2], {size:,} parameters on {policy.policy.device})"
    )
    assert repr(policy) == f"RolloutPolicy({algo})"
    config = offrl.config_factory("bc", json.loads(file.read_text()))
    config.train.cuda = False
    trainer = repr(offrl.Trainer(config))
    assert trainer.startswith("Trainer(BC(position") and trainer.endswith("epoch 0 of 2, step 0)")
    online = repr(Trainer(env_id="CartPole-v1", algo_name="dqn"))
    pattern = r"ActingTrainer\(DQN\(flat \[4\] -> one of 2 .* CartPole-v1, step 0 of any\)"
    assert re.match(pattern, online)
