//! Which arguments `brevity perf` takes, and which it refuses.

use brevity_bench::perf::{Simulation, SparseCollective};

use super::super::parsed::parsed_line;
use super::*;

fn plan(line: &str) -> Result<Plan, String> {
    parsed_line(line)?.plan().map_err(|error| error.to_string())
}

#[test]
fn rows_follow_sizes_and_densities() {
    let bytes = |line: &str| plan(line).unwrap().cases.iter().map(|case| case.bytes).collect::<Vec<_>>();
    assert_eq!(bytes("latency --size 1:8"), [1, 2, 4, 8]);
    assert_eq!(bytes("latency").len(), 23);
    assert_eq!(bytes("bibandwidth --size 1:2"), [1, 2]);
    assert_eq!(bytes("allreduce")[..2], [4, 8]);
    assert_eq!(bytes("allgather --dtype f64")[..2], [8, 16]);
    assert_eq!(bytes("allreduce --dtype f64 --elements 3"), [24]);
    assert_eq!(bytes("broadcast --dtype bf16 --elements 3"), [6]);
    assert_eq!(bytes("allreduce --elements 3"), [12]);
    assert_eq!(bytes("allreduce --size 64K"), [65_536]);
    assert_eq!(bytes("gtopk-allreduce"), [4 << 20]);
    let rows = plan("gtopk-allreduce --elements 1K --density 0.01,0.1").unwrap().cases;
    let densities: Vec<_> = rows.iter().map(|case| case.density.unwrap().share()).collect();
    assert_eq!((densities, rows[0].bytes, rows[1].bytes), (vec![0.01, 0.1], 4096, 4096));
    assert_eq!(plan("gtopk-allreduce --size 4:16 --density 0.5,1").unwrap().cases.len(), 6);
    assert_eq!(bytes("barrier"), [0]);
    assert_eq!(bytes("allreduce --transport sim --np 1024").last(), Some(&(1 << 20)));
    assert_eq!(bytes("allgather --transport sim --np 1024").last(), Some(&(1 << 10)));
    assert_eq!(bytes("alltoallv --transport sim --np 1024").last(), Some(&(1 << 10)));
    assert_eq!(bytes("reducescatterv --transport sim --np 1024").last(), Some(&(1 << 20)));
    assert_eq!(bytes("vote-allreduce --transport sim --np 1024").last(), Some(&(1 << 20)));
    assert_eq!(bytes("lowrank-allreduce"), [4 << 20]);
    assert_eq!(bytes("lowrank-allreduce --transport sim --np 1024"), [1 << 20]);
    assert_eq!(bytes("gtopk-allreduce --transport sim --np 1024"), [1 << 20]);
    // What every rank gathers is longer than its vector.
    assert_eq!(bytes("split-allreduce --transport sim --np 1024"), [256 << 10]);
    assert_eq!(bytes("topk-allreduce --transport sim --np 1024 --density 0.001,0.01"), [32 << 10; 2]);
    assert_eq!(bytes("topk-allreduce --transport sim --np 1024 --elements 1M"), [4 << 20]);
}

#[test]
fn values_are_packed() {
    let benchmark = |line: &str| plan(line).unwrap().benchmark;
    let quantised = |values| Benchmark::FewBits(FewBits::Quantised(values));
    assert_eq!(benchmark("quantised-allreduce"), quantised(Values::Bf16));
    assert_eq!(benchmark("quantised-allreduce --values eight-bit"), quantised(Values::EightBit));
    for collective in SparseCollective::ALL {
        let name = collective.name();
        assert_eq!(benchmark(name), Benchmark::Sparse(collective, Wire::Pairs));
        let coded = Benchmark::Sparse(collective, Wire::Coded(Values::Bf16));
        assert_eq!(benchmark(&format!("{name} --values bf16")), coded);
    }
}

#[test]
fn factors_have_a_rank() {
    let benchmark = |line: &str| plan(line).unwrap().benchmark;
    assert_eq!(benchmark("lowrank-allreduce"), Benchmark::LowRank(4));
    assert_eq!(benchmark("lowrank-allreduce --rank 2 --size 4K:16K"), Benchmark::LowRank(2));
}

#[test]
fn counts_have_defaults() {
    let counts = |line: &str| {
        let case = plan(line).unwrap().cases[0];
        (case.iterations, case.warmup)
    };
    assert_eq!(counts("latency --size 8K"), (1000, 100));
    assert_eq!(counts("latency --size 16K"), (100, 10));
    assert_eq!(counts("latency --size 16K --iterations 7 --warmup 0"), (7, 0));
    assert_eq!(plan("latency").unwrap().wanted().ranks_to_start(), 2);
    // The name in earlier versions still works.
    for line in ["allreduce -n 5", "allreduce --ranks 5", "allreduce --np 5"] {
        assert_eq!(plan(line).unwrap().wanted().ranks_to_start(), 5, "{line}");
    }
}

#[test]
fn ways_follow_their_options() {
    let way = |line: &str| plan(line).unwrap().way;
    assert_eq!(way("allreduce --transport tcp"), Way::Timed);
    assert_eq!(way("allreduce --overlap"), Way::Overlapped { tests: 0 });
    assert_eq!(way("broadcast --overlap --tests 5"), Way::Overlapped { tests: 5 });
    let simulated = |world_size, alpha, beta| Way::Simulated(Simulation { world_size, alpha, beta });
    assert_eq!(way("allreduce --transport sim"), simulated(2, 20e-6, 8e-9));
    for name in ["allgather", "oktopk-allreduce", "lowrank-allreduce", "vote-allreduce", "block-allreduce"] {
        let line = format!("{name} --transport sim --np 1024 --alpha 1e-6 --beta 1e-10");
        assert_eq!(way(&line), simulated(1024, 1e-6, 1e-10));
    }
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    let refused = [
        ("dance", "oktopk-allreduce, lowrank-allreduce, quantised-allreduce, vote-allreduce; or compress"),
        ("latency --ranks 1", "from 2 to"),
        ("allreduce --ranks 0", "from 1 to"),
        ("allreduce --dtype i8", "name one of f32, f64, f16, bf16"),
        ("latency --dtype f64", "no other elements"),
        ("gtopk-allreduce --dtype f64", "no other elements"),
        ("allgather --dtype f64 --size 4:16", "an f64 has 8 bytes"),
        ("put --elements 8", "--size in bytes"),
        ("allreduce --iterations 0", "at least 1"),
        (
            "allreduce --density 0.1",
            "goes with randomk-allreduce, randomblock-allreduce, block-allreduce, hierarchical-allreduce, ",
        ),
        (
            "allreduce --values bf16",
            "goes with sparse-allgather, sparse-reducescatter, topk-allreduce, split-allreduce",
        ),
        ("sparse-allgather --values bf17", "name one of f32"),
        ("randomk-allreduce --values bf16", "goes with sparse-allgather"),
        ("sparse-allgather --dtype f64", "no other elements"),
        ("allgatherv --dtype f64", "no other elements"),
        ("gatherv --overlap", "not gatherv"),
        ("lowrank-allreduce --dtype f64", "no other elements"),
        ("lowrank-allreduce --rank 0", "at least 1"),
        ("lowrank-allreduce --density 0.1", "drops nothing"),
        ("lowrank-allreduce --values bf16", "has one format"),
        ("gtopk-allreduce --rank 4", "--rank goes with lowrank-allreduce: gtopk-allreduce has no factors"),
        ("lowrank-allreduce --overlap", "not lowrank-allreduce"),
        ("latency --elements 8", "--size in bytes"),
        ("allreduce --size 4:8 --elements 8", "give one of them"),
        ("allreduce --size 1:8", "an f32 has 4 bytes"),
        ("allreduce --elements 8G", "32 bits"),
        ("gtopk-allreduce --density 0", "above 0"),
        ("gtopk-allreduce --density 0.1,nan", "above 0"),
        ("gtopk-allreduce --density 1.5", "at most 1"),
        ("barrier --size 8", "a barrier has none"),
        ("barrier --dtype f64", "a barrier has none"),
        ("latency --transport sim", "not latency"),
        ("gtopk-allreduce --overlap", "not gtopk-allreduce"),
        ("allreduce --overlap --plot a.svg", "does not go with --overlap"),
        ("allreduce --tests 3", "goes with --overlap"),
        ("allreduce --alpha 1", "go with --transport sim"),
        ("allreduce --transport sim --beta 1e9", "from 0 to 1000"),
        ("allreduce --transport sim --overlap", "does not go with --transport sim"),
        ("allreduce --transport sim --iterations 3", "does not go with --transport sim"),
        ("latency --only drop", "go with compress"),
        ("latency --record folder", "go with compress"),
    ];
    for (line, expected) in refused {
        let message = plan(line).expect_err(line);
        assert!(message.contains(expected), "{line}: {message}");
        assert_eq!(message.lines().count(), 1, "{line}: {message}");
    }
}

#[test]
fn what_can_not_be_read_is_refused_by_the_parser() {
    for line in [
        "",
        "latency --size 8:4",
        "latency --ranks many",
        "latency --iterations -1",
        "latency --bogus",
        "a b",
        "latency --plot figure.png",
        "latency --transport smoke",
    ] {
        assert!(plan(line).is_err(), "{line}");
    }
}
