//! A step of PowerSGD on one square matrix, compared with adding, reading and writing as much memory; and its
//! phases, compared with the memory accesses that each needs.

use std::hint::black_box;

use brevity::compress::dense::add_assign;
use brevity::compress::low_rank::{ErrorMemory, LowRank, Workspace};

use super::vectors::{normal, read};
use super::{Done, Extent, Group, Outcome, Row, Subject, check, measure as measure_row, refused};
use crate::{Error, Result};

/// Rows and columns of the matrix, if there are enough elements.
const SIDE: usize = 4096;

/// Rows and columns that are compared with plain loops.
const SAMPLE: usize = 64;

/// Ranks, and the largest ratio of a step's time to the floor's.
const BARS: [(usize, f64); 4] = [(1, 1.4), (2, 1.4), (4, 1.65), (8, 2.3)];

/// One matrix, and the work space of its steps.
struct Step {
    gradient: Vec<f32>,
    /// The vector that the floor adds to.
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
        // The gradient and the matrix are read and the matrix is written; it is read again; the update is
        // written.
        let subject = step.subject("all phases", 5, "acc+rd+wr").at_most(bar);
        told(measure_row(subject, extent.iterations, &mut step, |_| (), Step::floor, Step::run)?);
        told(step.row("add, take out, left factor", 3, "acc", extent, Step::add, Step::accumulate)?);
        let orthonormalise = |step: &mut Step| {
            step.p.copy_from_slice(&step.left);
            step.orthonormalise()
        };
        told(step.row("orthonormalise", 0, "read", extent, Step::read, orthonormalise)?);
        told(step.row("right factor", 1, "read", extent, Step::read, Step::right_factor)?);
        told(step.row("reconstruct", 1, "write", extent, Step::write, Step::reconstruct)?);
    }
    Ok(())
}

const NAME: &str = "PowerSGD";

/// Whether two sums of products of normal deviates are equal up to rounding.
fn near(a: f64, b: f64, scale: f64) -> bool {
    (a - b).abs() < 1e-4 * scale
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

    /// A kernel that reads or writes `matrices` matrices.
    fn subject(&self, what: &str, matrices: usize, floor: &'static str) -> Subject {
        let name = format!("{NAME}, rank {}, {what}", self.state.rank());
        Subject::new(Group::LowRank, name, self.gradient.len(), 4 * matrices, floor)
    }

    fn row<F: Outcome>(
        &mut self,
        what: &str,
        matrices: usize,
        floor_name: &'static str,
        extent: Extent,
        floor: impl FnMut(&mut Self) -> F,
        phase: impl FnMut(&mut Self) -> Done,
    ) -> Result<Row> {
        let subject = self.subject(what, matrices, floor_name);
        measure_row(subject, extent.iterations, self, |_| (), floor, phase)
    }

    /// `r += g`, a sum, and a fill.
    fn floor(&mut self) -> Done {
        self.add()?;
        self.read();
        self.write();
        Ok(())
    }

    fn add(&mut self) -> Done {
        add_assign(&mut self.sum, &self.gradient)
    }

    fn read(&mut self) {
        read(&self.sum);
    }

    fn write(&mut self) {
        self.update.fill(0.0);
        black_box(&mut self.update);
    }

    /// All phases, as on a single rank, including the subtraction of the last step's error.
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

    /// Checks the phases of a step against plain loops, and that what two steps delivered plus what stays is
    /// the input.
    fn verify(&mut self) -> Result<()> {
        let start = self.state.q().to_vec();
        self.run().map_err(refused(NAME))?;
        self.verify_factors(&start)?;
        let first = self.update.clone();
        self.run().map_err(refused(NAME))?;
        let stays = self.memory.residual();
        let gap = |i: usize| (2.0 * self.gradient[i] - first[i] - self.update[i] - stays[i]).abs();
        let worst = (0..stays.len()).map(gap).fold(0.0, f32::max);
        // A few roundings of numbers below sixteen.
        if worst < 1e-4 {
            return Ok(());
        }
        Err(Error::contestant(NAME, format!("two steps lost {worst} of an element")))
    }

    /// Checks the first step's factors, with the gradient as the matrix: the left one spans `M Q` and has
    /// orthonormal columns, the right one is `M^T P`, and the update is the product of both.
    fn verify_factors(&self, start: &[f32]) -> Result<()> {
        let (m, p, q, rank) = (&self.gradient, &self.p, &self.q, self.state.rank());
        let (rows, cols) = (p.len() / rank, q.len() / rank);
        let entry = |factor: &[f32], i: usize, j: usize| f64::from(factor[i * rank + j]);
        let product = |a: &[f32], b: &[f32], length: usize, i: usize, j: usize| -> f64 {
            (0..length).map(|row| entry(a, row, i) * entry(b, row, j)).sum()
        };
        let is_unit = |i, j| (product(p, p, rows, i, j) - f64::from(u8::from(i == j))).abs() < 1e-4;
        check(
            (0..rank).all(|i| (0..rank).all(|j| is_unit(i, j))),
            NAME,
            "the left factor is not orthonormal",
        )?;
        // Some rows and columns: checking all would take as long as a measurement.
        let some = |count: usize| (0..count).step_by(count.div_ceil(SAMPLE).max(1));
        let scale = (rows.max(cols) as f64).sqrt();
        let right = |col: usize, j: usize| {
            (0..rows).map(|row| f64::from(m[row * cols + col]) * entry(p, row, j)).sum()
        };
        let is_right = |col| (0..rank).all(|j| near(right(col, j), entry(q, col, j), scale));
        check(some(cols).all(is_right), NAME, "the right factor is not M^T P")?;
        let said = |row: usize, col: usize| (0..rank).map(|j| entry(p, row, j) * entry(q, col, j)).sum();
        let is_said = |row: usize| {
            some(cols).all(|col| near(said(row, col), self.update[row * cols + col].into(), scale))
        };
        check(some(rows).all(is_said), NAME, "the update is not P Q^T")?;
        // `M Q` is in the span of the left factor: nothing is left of it after subtracting its projection.
        let left = |row: usize, j: usize| {
            (0..cols).map(|col| f64::from(m[row * cols + col]) * entry(start, col, j)).sum()
        };
        let of_left: Vec<f64> =
            (0..rows).flat_map(|row| (0..rank).map(move |j| (row, j))).map(|(r, j)| left(r, j)).collect();
        let inner =
            |i: usize, j: usize| (0..rows).map(|row| entry(p, row, i) * of_left[row * rank + j]).sum::<f64>();
        let inners: Vec<f64> = (0..rank * rank).map(|at| inner(at / rank, at % rank)).collect();
        let spanned = |row: usize, j: usize| (0..rank).map(|i| entry(p, row, i) * inners[i * rank + j]).sum();
        let is_spanned =
            |row: usize| (0..rank).all(|j| near(spanned(row, j), of_left[row * rank + j], scale * scale));
        check((0..rows).all(is_spanned), NAME, "the left factor does not span M Q")
    }
}
