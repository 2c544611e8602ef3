//! PowerSGD's phases on a 4096 x 4096 matrix, compared with their floors: adding, reading and writing as much
//! memory.

use std::hint::black_box;

use brevity_compress::dense::add_assign;
use brevity_compress::generator::Generator;
use brevity_compress::low_rank::{ErrorMemory, LowRank, Workspace};
use criterion::{Criterion, criterion_group, criterion_main};

const SIDE: usize = 4096;

fn normal(n: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; n];
    Generator::new(seed).fill_normal(&mut values);
    values
}

fn floors(c: &mut Criterion) {
    let mut group = c.benchmark_group("low_rank 4096 x 4096");
    group.sample_size(10);
    let (mut m, gradient, mut out) = (normal(SIDE * SIDE, 1), normal(SIDE * SIDE, 2), vec![0.0; SIDE * SIDE]);
    group.bench_function("floor: m += g", |b| b.iter(|| add_assign(&mut m, &gradient)));
    group.bench_function("floor: sum of m", |b| {
        b.iter(|| black_box(&m).iter().fold(0_u32, |sum, v| sum.wrapping_add(v.to_bits())));
    });
    group.bench_function("floor: fill", |b| b.iter(|| black_box(&mut out).fill(1.5)));
    group.finish();
}

fn phases(c: &mut Criterion) {
    let mut group = c.benchmark_group("low_rank 4096 x 4096");
    group.sample_size(10);
    let (gradient, mut out) = (normal(SIDE * SIDE, 2), vec![0.0; SIDE * SIDE]);
    for rank in [1, 2, 4, 8] {
        let Ok(mut state) = LowRank::new(SIDE, SIDE, rank, 5) else { continue };
        let (mut memory, mut workspace) = (ErrorMemory::new(&state), Workspace::default());
        let (mut p, mut q) = (vec![0.0; state.p_len()], vec![0.0; state.q_len()]);
        let _ = memory.accumulate(&state, &gradient, &mut p, &mut workspace);
        let product = p.clone();
        group.bench_function(format!("orthonormalise {rank}"), |b| {
            b.iter(|| {
                p.copy_from_slice(&product);
                state.orthonormalise(&mut p, &mut workspace)
            });
        });
        group.bench_function(format!("right_factor {rank}"), |b| {
            b.iter(|| state.right_factor(memory.matrix(), &p, &mut q, &mut workspace));
        });
        group.bench_function(format!("reconstruct {rank}"), |b| {
            b.iter(|| state.reconstruct(&p, &q, &mut out, &mut workspace));
        });
        let mut left = vec![0.0; state.p_len()];
        group.bench_function(format!("commit, and accumulate with the subtraction {rank}"), |b| {
            b.iter(|| {
                let committed = memory.commit(&state, &p, &q, &mut workspace);
                committed.and_then(|()| memory.accumulate(&state, &gradient, &mut left, &mut workspace))
            });
        });
        group.bench_function(format!("a whole step {rank}"), |b| {
            b.iter(|| step(&mut state, &mut memory, &gradient, (&mut p, &mut q), &mut out, &mut workspace));
        });
    }
    group.finish();
}

fn step(
    state: &mut LowRank,
    memory: &mut ErrorMemory,
    gradient: &[f32],
    (p, q): (&mut [f32], &mut [f32]),
    out: &mut [f32],
    workspace: &mut Workspace,
) -> Result<(), brevity_compress::Error> {
    memory.accumulate(state, gradient, p, workspace)?;
    state.orthonormalise(p, workspace)?;
    state.right_factor(memory.matrix(), p, q, workspace)?;
    state.reconstruct(p, q, out, workspace)?;
    memory.commit(state, p, q, workspace)?;
    state.set_q(q)
}

criterion_group!(benches, floors, phases);
criterion_main!(benches);
