"""An example or two for each command: its `--help` and docs/reference.md have them, and tests parse them."""

from __future__ import annotations

import click

EXAMPLES = """\
tunehub attest llvm-znver5-0.1.0.tunepkg --key lab.key --sample 10
tunehub attach s3://bucket/hub attestation.json --key publisher --online-key online
tunehub attach s3://bucket/hub compat.json --key publisher --online-key online
tunehub audit s3://bucket/hub
tunehub audit s3://bucket/hub --witness env:WITNESS_PEM --witness-name example.org/witness
tunehub bench model.onnx --dim batch=1 --plot bench.svg
tunehub bench Llama-3.2-1B/ --prompt 512 --generate 128 --batch 1,8 --against default,torch
tunehub bench model.so --against onnxruntime --json
tunehub cache clear
tunehub cache ls
tunehub cache verify
tunehub calibrate --dry-run
tunehub calibrate --device cuda
tunehub catalogue -o site/
tunehub catalogue s3://bucket/hub -o site/ --metadata-only
tunehub check work/resnet
tunehub check work/resnet --end-to-end
tunehub compile model.onnx
tunehub compile model.onnx --dim batch=1 -o model.so --report report.json
tunehub compile model.pt2 --specialize s77=1,8
tunehub compile Llama-3.2-1B/ --quantization q4f16_1 -o llama.so
tunehub delegate s3://bucket/hub alice --key alice.pub --names 'llvm-znver*' --targets-key targets --online-key online
tunehub demo --network squeezenet
tunehub deprecate s3://bucket/hub llvm-znver5==0.1.0 --successor 'llvm-znver5>=0.2' --reason 'made for TVM 0.25'
tunehub diff llvm-znver5==0.3.0 llvm-znver5==0.4.0
tunehub diff old.lock tunehub.lock --json
tunehub distill work/resnet -o records.jsonl
tunehub doctor
tunehub explain model.onnx --target llvm-znver5 --misses misses.jsonl
tunehub export metaschedule database/ --model model.onnx --target llvm-znver5
tunehub export metaschedule database/ --model model.onnx --dim batch=1 --prepare tvm --tvm 0.26
tunehub export tophub tophub/ --target llvm-znver5
tunehub fetch llvm-znver5==0.1.0
tunehub generate Llama-3.2-1B/ 'The capital of France is' --library llama.so
tunehub generate Llama-3.2-1B/ 'Once upon a time' --temperature 0.8 --top-p 0.95 --tokens 200
tunehub import cuda_v0.10.log -o registry/
tunehub import --from tophub arm_cpu mali adreno rocm opencl intel_graphics -o registry/
tunehub init s3://bucket/hub --root-key root1 --root-key root2 --targets-key targets --online-key online
tunehub inspect model.so
tunehub inspect model.so --sbom model.cdx.json
tunehub key new publisher
tunehub key show publisher.pub
tunehub list llvm
tunehub lock
tunehub lock llvm-znver5 'cuda-h200>=0.9' --upgrade llvm-znver5
tunehub lock 'llvm-znver5, attested>=2'
tunehub lock --check
tunehub mirror https://example.com/hub s3://bucket/hub
tunehub networks
tunehub pack work/resnet --version 0.1.0
tunehub pack --version 0.2.0 --with llvm-znver5-0.1.0.tunepkg --without '3f6a21=slower in resnet50'
tunehub publish s3://bucket/hub packages/llvm-znver5-0.1.0.tunepkg --key publisher --online-key online
tunehub publish s3://bucket/hub --catalogue --url https://hub.example.org
tunehub rebuild packages/llvm-znver5-0.1.0.tunepkg work/resnet
tunehub refresh s3://bucket/hub --online-key online
tunehub replay packages/llvm-znver5-0.1.0.tunepkg --tvm 0.27,0.26 -o compat.json
tunehub replay packages/cuda-h200-0.17.0.tunepkg --model mobilenet_v2_half8.onnx --from-misses llama.jsonl
tunehub resolve llvm-znver4
tunehub resolve llvm-znver4 --require 'attested>=2'
tunehub review submission/
tunehub review submission/ --registry s3://bucket/hub --role alice -o review.json
tunehub rotate s3://bucket/hub online --new-key online2 --root-key root1 --online-key online
tunehub rows packages/llvm-znver4-0.5.0.tunepkg
tunehub run model.so
tunehub run model.so --inputs x.npz --outputs y.npz
tunehub run model.onnx --profile --plot graph.svg
tunehub show llvm-znver5==0.1.0
tunehub submit work/resnet --version 0.1.0 --sign-off 'Ada Byron <ada@example.org>'
tunehub sync --frozen
tunehub timestamp s3://bucket/hub --online-key env:ONLINE_PEM --root root.json
tunehub tree
tunehub tree llvm-znver5 --lock tunehub.lock
tunehub trust add https://example.com/hub root.json
tunehub trust attester add lab.key.pub
tunehub trust attester ls
tunehub trust attester remove KEYID
tunehub trust bind llvm-znver5 https://example.com/hub
tunehub trust ls
tunehub trust remove https://example.com/hub
tunehub trust unbind llvm-znver5
tunehub tune --target host --model model.onnx --dim batch=1,2,4 --work work/model
tunehub tune --target host --from-misses misses.jsonl --tuner template --work work/misses
tunehub trust witness add s3://bucket/hub witness.pub
tunehub trust witness ls s3://bucket/hub
tunehub trust witness need s3://bucket/hub 1
tunehub trust witness remove s3://bucket/hub 3f6a21
tunehub undeprecate s3://bucket/hub llvm-znver5==0.1.0 --key publisher --online-key online
tunehub unyank s3://bucket/hub llvm-znver5==0.1.0 --key publisher --online-key online
tunehub yank s3://bucket/hub llvm-znver5==0.1.0 --reason 'slower than 0.0.9' --key publisher --online-key online
"""


def examples_of(path: tuple[str, ...]) -> tuple[str, ...]:
    """The examples of a command, or of all commands in a group, by the words that call it."""
    wanted = ["tunehub", *path]
    return tuple(line for line in EXAMPLES.splitlines() if line.split()[: len(wanted)] == wanted)


def with_examples(command: click.Command, path: tuple[str, ...]) -> click.Command:
    """The command, and those in it, with examples behind their help."""
    found = examples_of(path)
    if found:
        command.epilog = "\n".join(("\b", "Examples:", *(f"  {line}" for line in found)))
    for name, inner in getattr(command, "commands", {}).items():
        with_examples(inner, (*path, name))
    return command
