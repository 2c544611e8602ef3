//! A step of PowerSGD on one square matrix, over adding, reading and writing as much memory; and its phases, over what each of
//! them can't do without.

use std::hint::black_box;

use brevity::compress::dense::add_assign;
use brevity::compress::low_rank::{ErrorMemory, LowRank, Workspace};

use super::vectors::{normal, read};
use super::{Extent, Group, Row, Subject, measure as measure_row, refused};
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
    /// The left factor of a next step.
    left: Vec<f32>,
    q: Vec<f32>,
    workspace: Workspace,
}

/// Measures all rows.
pub(super) fn measure(extent: Extent, told: &mut impl FnMut(Row)) -> Result<()> {
    let side = extent.elements.isqrt().min(SIDE);
    for (rank, bar) in BARS {
        let mut step = Step::new(side, rank).map_err(refused(NAME))?;
        step.verify()?;
        // The gradient and the matrix are read, the matrix written; it is read again; the update is written.
        let subject = step.subject("all phases", 5, "acc+rd+wr").at_most(bar);
        told(measure_row(subject, extent.iterations, &mut step, |_| (), Step::floor, unless(Step::run)));
        told(step.row("add, take out, left factor", 3, "acc", extent, Step::add, Step::accumulate));
        let orthonormalise = |step: &mut Step| {
            step.p.copy_from_slice(&step.left);
            step.orthonormalise()
        };
        told(step.row("orthonormalise", 0, "read", extent, Step::read, orthonormalise));
        told(step.row("right factor", 1, "read", extent, Step::read, Step::right_factor));
        told(step.row("reconstruct", 1, "write", extent, Step::write, Step::reconstruct));
    }
    Ok(())
}

const NAME: &str = "PowerSGD";

type Done = std::result::Result<(), brevity::compress::Error>;

/// A phase as a kernel.
fn unless(mut phase: impl FnMut(&mut Step) -> Done) -> impl FnMut(&mut Step) {
    move |step| {
        let done = phase(step);
        debug_assert_eq!(done, Ok(()));
    }
}

impl Step {
    fn new(side: usize, rank: usize) -> std::result::Result<Self, brevity::compress::Error> {
        let state = LowRank::new(side, side, rank, 1)?;
        let (gradient, elements) = (normal(side * side, 2), side * side);
        Ok(Self {
            sum: gradient.clone(),
            update: vec![0.5; elements],
            memory: ErrorMemory::new(&state),
            p: vec![0.0; state.p_len()],
            left: vec![0.0; state.p_len()],
            q: vec![0.0; state.q_len()],
            workspace: Workspace::default(),
            gradient,
            state,
        })
    }

    /// A kernel that reads or writes as many matrices.
    fn subject(&self, what: &str, matrices: usize, floor: &'static str) -> Subject {
        let name = format!("{NAME}, rank {}, {what}", self.state.rank());
        Subject::new(Group::LowRank, name, self.gradient.len(), 4 * matrices, floor)
    }

    fn row(
        &mut self,
        what: &str,
        matrices: usize,
        floor_name: &'static str,
        extent: Extent,
        floor: impl FnMut(&mut Self),
        phase: impl FnMut(&mut Self) -> Done,
    ) -> Row {
        let subject = self.subject(what, matrices, floor_name);
        measure_row(subject, extent.iterations, self, |_| (), floor, unless(phase))
    }

    /// `r += g`, a sum, and a fill.
    fn floor(&mut self) {
        self.add();
        self.read();
        self.write();
    }

    fn add(&mut self) {
        add_assign(&mut self.sum, &self.gradient).unwrap_or_default();
    }

    fn read(&mut self) {
        read(&self.sum);
    }

    fn write(&mut self) {
        self.update.fill(0.0);
        black_box(&mut self.update);
    }

    /// All phases, as with one rank: the subtraction of the last step's error among them.
    fn run(&mut self) -> Done {
        let Self { gradient, state, memory, p, workspace, .. } = self;
        memory.accumulate(state, gradient, p, workspace)?;
        self.orthonormalise()?;
        self.right_factor()?;
        self.reconstruct()?;
        let Self { state, memory, p, q, workspace, .. } = self;
        memory.commit(state, p, q, workspace)?;
        state.set_q(q)
    }

    /// `M = g + M - P' Q'^T` and `P = M Q`, with the factors of the last step.
    fn accumulate(&mut self) -> Done {
        let Self { gradient, state, memory, p, left, q, workspace, .. } = self;
        memory.commit(state, p, q, workspace)?;
        memory.accumulate(state, gradient, left, workspace)
    }

    fn orthonormalise(&mut self) -> Done {
        self.state.orthonormalise(&mut self.p, &mut self.workspace)
    }

    fn right_factor(&mut self) -> Done {
        let Self { state, memory, p, q, workspace, .. } = self;
        state.right_factor(memory.matrix(), p, q, workspace)
    }

    fn reconstruct(&mut self) -> Done {
        let Self { update, state, p, q, workspace, .. } = self;
        state.reconstruct(p, q, update, workspace)
    }

    /// Makes sure that what two steps delivered and what stays are what came in.
    fn verify(&mut self) -> Result<()> {
        self.run().map_err(refused(NAME))?;
        let first = self.update.clone();
        self.run().map_err(refused(NAME))?;
        let stays = self.memory.residual(&self.state);
        let gap = |i: usize| (2.0 * self.gradient[i] - first[i] - self.update[i] - stays[i]).abs();
        let worst = (0..stays.len()).map(gap).fold(0.0, f32::max);
        // A few roundings of numbers below sixteen.
        if worst < 1e-4 {
            return Ok(());
        }
        Err(Error::contestant(NAME, format!("two steps lost {worst} of an element")))
    }
}
