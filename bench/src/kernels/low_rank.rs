//! A step of PowerSGD on one square matrix, over adding, reading and writing as much memory.

use std::hint::black_box;

use brevity::compress::dense::add_assign;
use brevity::compress::generator::Generator;
use brevity::compress::low_rank::{ErrorMemory, LowRank, Workspace};

use super::{Extent, Row, Subject, measure as measure_row};
use crate::{Error, Result};

/// Rows and columns of the matrix, if there are elements enough.
const SIDE: usize = 4096;

/// Ranks, and the most times the floor that a step may take.
const BARS: [(usize, f64); 4] = [(1, 1.4), (2, 1.4), (4, 1.65), (8, 2.3)];

/// One matrix, and everything that its steps need.
struct Step {
    gradient: Vec<f32>,
    /// What the floor adds to.
    sum: Vec<f32>,
    update: Vec<f32>,
    state: LowRank,
    memory: ErrorMemory,
    p: Vec<f32>,
    q: Vec<f32>,
    workspace: Workspace,
}

/// Measures all rows.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let side = extent.elements.isqrt().min(SIDE);
    for (rank, bar) in BARS {
        let mut step = Step::new(side, rank).map_err(refused)?;
        step.verify()?;
        let elements = side * side;
        let subject = Subject {
            kernel: format!("PowerSGD, rank {rank}, all phases"),
            elements,
            density: None,
            // The gradient and the matrix are read, the matrix written; it is read again; the update is written.
            bytes: 5 * 4 * elements,
            floor: "acc+rd+wr",
            bar: Some(bar),
        };
        let kernel = |step: &mut Step| {
            let outcome = step.run();
            debug_assert_eq!(outcome, Ok(()));
        };
        told(measure_row(subject, extent.iterations, &mut step, |_| (), Step::floor, kernel));
    }
    Ok(())
}

impl Step {
    fn new(side: usize, rank: usize) -> std::result::Result<Self, brevity::compress::Error> {
        let state = LowRank::new(side, side, rank, 1)?;
        let (mut gradient, elements) = (vec![0.0; side * side], side * side);
        Generator::new(2).fill_normal(&mut gradient);
        Ok(Self {
            sum: gradient.clone(),
            update: vec![0.5; elements],
            memory: ErrorMemory::new(&state),
            p: vec![0.0; state.p_len()],
            q: vec![0.0; state.q_len()],
            workspace: Workspace::default(),
            gradient,
            state,
        })
    }

    /// `r += g`, a sum, and a fill.
    fn floor(&mut self) {
        add_assign(&mut self.sum, &self.gradient).unwrap_or_default();
        black_box(self.sum.iter().fold(0_u32, |sum, value| sum.wrapping_add(value.to_bits())));
        self.update.fill(0.0);
        black_box(&mut self.update);
    }

    /// All phases, as with one rank: the subtraction of the last step's error among them.
    fn run(&mut self) -> std::result::Result<(), brevity::compress::Error> {
        let Self { gradient, update, state, memory, p, q, workspace, .. } = self;
        memory.accumulate(state, gradient, p, workspace)?;
        state.orthonormalise(p, workspace)?;
        state.right_factor(memory.matrix(), p, q, workspace)?;
        state.reconstruct(p, q, update, workspace)?;
        memory.commit(state, p, q, workspace)?;
        state.set_q(q)
    }

    /// Makes sure that what two steps delivered and what stays are what came in.
    fn verify(&mut self) -> Result<()> {
        self.run().map_err(refused)?;
        let first = self.update.clone();
        self.run().map_err(refused)?;
        let stays = self.memory.residual(&self.state);
        let gap = |i: usize| (2.0 * self.gradient[i] - first[i] - self.update[i] - stays[i]).abs();
        let worst = (0..stays.len()).map(gap).fold(0.0, f32::max);
        // A few roundings of numbers below sixteen.
        if worst < 1e-4 {
            return Ok(());
        }
        Err(Error::contestant("PowerSGD", format!("two steps lost {worst} of an element")))
    }
}

fn refused(error: brevity::compress::Error) -> Error {
    Error::contestant("PowerSGD", error.to_string())
}
