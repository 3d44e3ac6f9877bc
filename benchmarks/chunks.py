"""Policies that predict chunks: training steps and actions beside bare loops.

    OMP_NUM_THREADS=1 python benchmarks/chunks.py [--only unet act] [--repeats 7] [--json out.json]

The bare loop is the same network made of PyTorch's own layers (``plain``), with losses, averaged
weights and denoising written down by hand, and a batch that is on the device already. All take
turns in one run; a figure is the median over the turns, a ratio that of the ratios within a turn,
with the smallest and the largest. On a GPU, chunks are also predicted by graphs
(``train.engine=graph``), beside eager ones.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from measure import alternate, machine, markdown, ratios, spread, timed
from throughput import offrl_loop, repeated
from torch import Tensor, nn
from torch.nn import functional as F

from offrl import RolloutPolicy, config_factory
from offrl.acting.policy import CHUNK_ROWS
from offrl.config.files import find_file, read_config_file
from offrl.kernels.layers import Conv1d, Dropout, Linear
from offrl.training import Trainer
from offrl.tree import merge

BATCH = 64
Loss = Callable[[Any, dict[str, Any]], Tensor]
Denoise = Callable[[Any, Tensor, Tensor], None]


def plain(net: nn.Module) -> nn.Module:
    """A copy made of PyTorch's own layers."""
    net, device = copy.deepcopy(net), next(net.parameters()).device
    for name, module in list(net.named_modules()):
        if isinstance(module, Linear):
            own = nn.Linear(module.in_features, module.out_features, module.bias is not None)
        elif isinstance(module, Conv1d):
            size = module.kernel_size[0]
            own = nn.Conv1d(module.in_channels, module.out_channels, size, padding=size // 2)
        elif isinstance(module, Dropout):
            own = nn.Dropout(module.p)
        else:
            continue
        own.load_state_dict(module.state_dict())
        net.set_submodule(name, own)
    return net.to(device)


# -- losses by hand -------------------------------------------------------------------------------

COSINES = torch.cos((torch.arange(101) / 100 + 0.008) / 1.008 * torch.pi / 2) ** 2
BETAS = (1 - COSINES[1:] / COSINES[:-1]).clamp(max=0.999)
ALPHAS = (1 - BETAS).cumprod(0)


def diffusion_loss(nets: Any, batch: dict[str, Any]) -> Tensor:
    actions, alphas = batch["actions"], batch["alphas"]
    noise = torch.randn_like(actions)
    times = torch.randint(0, len(alphas), (len(actions),), device=actions.device)
    alpha = alphas[times][:, None, None]
    noisy = alpha.sqrt() * actions + (1 - alpha).sqrt() * noise
    net = nets["policy"]
    return F.mse_loss(net(noisy, times, net.encoder(batch["obs"])), noise)


def flow_loss(nets: Any, batch: dict[str, Any]) -> Tensor:
    actions, net = batch["actions"], nets["policy"]
    noise = torch.randn_like(actions)
    t = torch.rand(len(actions), 1, 1, device=actions.device)
    velocity = net(torch.lerp(noise, actions, t), 100 * t.flatten(), net.encoder(batch["obs"]))
    return F.mse_loss(velocity, actions - noise)


def act_loss(nets: Any, batch: dict[str, Any]) -> Tensor:
    net, obs, actions = nets["policy"], batch["obs"], batch["actions"]
    mean, logvar = net.posterior(obs, actions, batch["pad_mask"])
    z = mean + (logvar / 2).exp() * torch.randn_like(mean)
    kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(-1).mean()
    errors = (net(obs, z) - actions).abs().mean(-1, keepdim=True) * batch["pad_mask"]
    return errors.sum() / batch["pad_mask"].sum() + 10 * kl


def vq_bet_loss(nets: Any, batch: dict[str, Any]) -> Tensor:
    net, vq = nets["policy"], nets["codes"]
    chunks = batch["actions"].unfold(1, vq.shape[0], 1).flatten(0, 1).transpose(1, 2)
    with torch.no_grad():
        codes = vq.codes(chunks)
        meant = vq.decode(codes)
    features = net(batch["obs"]).flatten(0, 1)
    all_logits, offsets = net.predict(features, lambda layer, _: codes[:, layer])
    loss = 10 * (meant + offsets.view_as(chunks) - chunks).abs().mean()
    for layer, logits in enumerate(all_logits):
        log_p = -F.cross_entropy(logits, codes[:, layer], reduction="none")
        loss = loss - 0.5**layer * ((1 - log_p.exp()) ** 2 * log_p).mean()
    return loss


# -- denoising by hand ----------------------------------------------------------------------------


def ddim(net: Any, x: Tensor, seen: Tensor) -> None:
    for time in range(90, -1, -10):
        alpha = ALPHAS[time]
        before = ALPHAS[time - 10] if time else torch.tensor(1.0)
        noise = net(x, torch.full((len(x),), time, device=x.device), seen)
        clean = ((x - (1 - alpha).sqrt() * noise) / alpha.sqrt()).clamp(-1, 1)
        noise = (x - alpha.sqrt() * clean) / (1 - alpha).sqrt()
        x = before.sqrt() * clean + (1 - before).sqrt() * noise


def euler(net: Any, x: Tensor, seen: Tensor) -> None:
    for time in (0, 25, 50, 75):
        x = x + net(x, torch.full((len(x),), float(time), device=x.device), seen) / 4


@dataclass
class Policy:
    title: str
    config: str
    loss: Loss
    denoise: Denoise | None = None
    algo: dict[str, Any] = field(default_factory=dict)


UNET = {"diffusion_step_embed_dim": 256, "down_dims": [256, 512, 1024]}  # robomimic's
POLICIES = {
    "unet": Policy(
        "U-Net of 65.8M (robomimic's)",
        "diffusion_policy.json",
        diffusion_loss,
        ddim,
        {"unet": UNET},
    ),
    "small_unet": Policy("U-Net of 4.6M", "diffusion_policy.json", diffusion_loss, ddim),
    "flow": Policy("U-Net of 4.6M, flow in 4 steps", "flow_matching.json", flow_loss, euler),
    "transformer": Policy(
        "diffusion Transformer", "diffusion_transformer.json", diffusion_loss, ddim
    ),
    "act": Policy("ACT", "act.json", act_loss),
    "vq_bet": Policy(
        "VQ-BeT, its Transformer", "vq_bet.json", vq_bet_loss, algo={"vq": {"epochs": 0.0}}
    ),
}


def make_trainer(policy: Policy, steps: int, engine: str = "eager") -> Trainer:
    content = read_config_file(find_file(policy.config, "configs"))
    changes = {
        "algo": policy.algo,
        "train": {"batch_size": BATCH, "num_epochs": 1_000_000, "engine": engine},
        "experiment": {
            "validate": False,
            "rollout": {"enabled": False},
            "epoch_every_n_steps": steps,
        },
    }
    return Trainer(config_factory(content["algo_name"], merge(content, changes)))


# -- the contestants ------------------------------------------------------------------------------


def bare_step(trainer: Trainer, loss_of: Loss) -> Callable[[], None]:
    algo = trainer.algo
    nets = plain(algo.nets)
    name, config = "policy", trainer.config
    params = [*nets[name].parameters()]
    is_cuda = algo.device.type == "cuda"
    optimizer = torch.optim.AdamW(params, lr=1e-4, fused=True, capturable=is_cuda)
    average = [p.detach().clone() for p in params]
    first = trainer.dataset.get_batch(torch.arange(BATCH, device=trainer.dataset.device))
    batch = algo.process_batch_for_training(first)
    if batch["pad_mask"] is None:
        batch["pad_mask"] = torch.ones_like(batch["actions"][..., :1])
    batch["alphas"] = ALPHAS.to(algo.device)

    def step() -> None:
        loss = loss_of(nets, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if config.train.ema.enabled:
            with torch.no_grad():
                torch._foreach_lerp_(average, params, 0.01)

    return step


def offrl_acting(trainer: Trainer, num_envs: int) -> Callable[[], float]:
    """All actions of a chunk."""
    algo = trainer.algo
    policy = RolloutPolicy(algo)
    shapes = algo.obs_spec.shapes("obs").items()
    obs = {
        env: {key: torch.randn(shape).numpy() for key, shape in shapes} for env in range(num_envs)
    }

    def act() -> None:
        for env in obs:
            policy.start_episode(env, seed=env)
        for _ in range(algo.algo_config.horizon.action_horizon):
            policy.act(obs)

    return timed(act)


def bare_acting(trainer: Trainer, denoise: Denoise, num_envs: int) -> Callable[[], float]:
    """One chunk."""
    algo = trainer.algo
    net, config = plain(algo.nets)["policy"].eval(), algo.algo_config
    rows = next(n for n in CHUNK_ROWS if n >= num_envs)
    frames = config.horizon.observation_horizon
    shapes = algo.obs_spec.shapes("obs").items()
    obs = {key: torch.randn(rows, frames, *shape, device=algo.device) for key, shape in shapes}
    shape = rows, config.horizon.prediction_horizon, algo.ac_dim

    @torch.no_grad()
    def act() -> None:
        denoise(net, torch.randn(shape, device=algo.device), net.encoder(obs))

    return timed(act)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=POLICIES, default=[*POLICIES])
    parser.add_argument("--repeats", type=int, default=7, help="turns of each contestant")
    parser.add_argument("--steps", type=int, default=5, help="training steps per turn")
    parser.add_argument("--json", type=Path, help="also write every measured second there")
    args = parser.parse_args()

    measured, steps, actions, graphs = {}, [], [], []
    for name in args.only:
        policy = POLICIES[name]
        trainer = make_trainer(policy, args.steps)
        bare = repeated(trainer, bare_step(trainer, policy.loss))
        loops = {"offrl": offrl_loop(trainer), "bare": bare}
        found = measured[name] = alternate(loops, args.repeats)
        steps.append([policy.title, *row(found, args.steps)])
        if policy.denoise is None:
            continue
        trainer.algo.set_eval()
        for num in (1, 8, 32):
            loops = {
                "offrl": offrl_acting(trainer, num),
                "bare": bare_acting(trainer, policy.denoise, num),
            }
            found = measured[f"{name}, {num}"] = alternate(loops, args.repeats)
            actions.append([policy.title, f"{num}", *row(found)])
        if trainer.device.type != "cuda":
            continue
        captured = make_trainer(policy, args.steps, "graph")
        for num in (1, 8, 32):
            loops = {"graph": offrl_acting(captured, num), "eager": offrl_acting(trainer, num)}
            found = measured[f"{name}, {num}, graph"] = alternate(loops, args.repeats)
            graphs.append([policy.title, f"{num}", *row(found, names=("graph", "eager"))])
    print(f"{machine()}; {args.repeats} turns\n")
    header = ["offrl, ms", "bare loop, ms", "offrl's time / bare loop's"]
    print(markdown([f"training step, batch {BATCH}", *header], steps))
    if actions:
        print(markdown(["acting, a chunk", "environments", *header], actions))
    if graphs:
        header = ["graph, ms", "eager, ms", "graph's time / eager"]
        print(markdown(["acting, a chunk", "environments", *header], graphs))
    elif actions:
        print("Chunks by graphs (train.engine=graph) were not measured: there is no GPU.")
    if args.json:
        content = {"machine": machine(), "steps": args.steps, "seconds": measured}
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def row(
    found: dict[str, list[float]], steps: int = 1, names: tuple[str, str] = ("offrl", "bare")
) -> list[str]:
    times = [spread([1000 * x / steps for x in found[name]], 1) for name in names]
    return [*times, spread(ratios(*(found[name] for name in names)))]


if __name__ == "__main__":
    main()
