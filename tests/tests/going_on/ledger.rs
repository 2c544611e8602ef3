//! What becomes of gradients: nothing is lost but with the dead, and nothing counts twice.

use brevity::compress::SparseVec;
use brevity::compress::select::{TopKScratch, top_k};
use brevity::transport::sim::Fault;

use super::{COUNT, DENSITY, Diary, EXACT, Plan, TENSORS, Tensors, add, gradients, sums, victim_of};

impl Diary {
    /// Whether a step among so many ranks was delivered here. The living may have made it without the dead.
    fn has_delivered(&self, of: (u32, u32)) -> bool {
        self.delivered.iter().any(|(step, size, _)| (*step, *size) == of)
    }

    /// What is lost of a tensor with this rank, which is dead. `None` if merges have returned to it what
    /// nobody knows.
    fn taken_along(&self, rank: u32, tensor: usize, living: &Self) -> Option<Vec<f32>> {
        let ended = self.begun.iter().zip(&self.residuals[1..]);
        let is_alike = |step| self.has_delivered(step) == living.has_delivered(step);
        let alike = ended.take_while(|(step, _)| is_alike(**step)).count();
        if let Some(step) = self.begun.get(alike).filter(|_| self.residuals.len() > alike + 1) {
            // Otherwise its averages of the step have died with it.
            assert!(self.has_delivered(*step), "rank {rank} has put back step {step:?}");
        }
        let mut kept = self.residuals[alike][tensor].clone();
        for step in &self.begun[alike..] {
            kept.iter_mut().zip(&gradients(rank, step.0)[tensor]).for_each(|(kept, own)| *kept += own);
            match tensor {
                _ if !living.has_delivered(*step) => {}
                0 => kept.fill(0.0),
                1 => {
                    let (mut sent, mut scratch) = (SparseVec::new(COUNT), TopKScratch::new());
                    top_k(&kept, (DENSITY * COUNT as f64).round() as usize, &mut sent, &mut scratch).unwrap();
                    sent.iter().for_each(|(index, _)| kept[index as usize] = 0.0);
                }
                _ => return None,
            }
        }
        Some(kept)
    }
}

impl Plan {
    /// What a rank has handed in, in the steps that it has begun.
    fn handed_in(rank: u32, begun: &[(u32, u32)]) -> Tensors {
        let mut all = vec![vec![0.0; COUNT]; TENSORS];
        begun.iter().for_each(|(step, _)| add(&mut all, &gradients(rank, *step), 1.0));
        all
    }

    /// Kills ranks. Returns what all have done.
    pub(super) fn kill(self, faults: &[Fault]) -> Vec<Diary> {
        let diaries = self.simulate(faults.iter().copied());
        let case = || format!("{self:?}, {faults:?}: {diaries:#?}");
        let is_dead = |rank: &u32| faults.iter().any(|fault| victim_of(fault) == *rank);
        let (dead, living): (Vec<u32>, Vec<u32>) = (0..self.world_size).partition(is_dead);
        let first = &diaries[living[0] as usize];
        for rank in &living {
            let diary = &diaries[*rank as usize];
            assert!(diary.has_ended, "rank {rank}, {}", case());
            assert_eq!(diary.delivered, first.delivered, "ranks {} and {rank}, {}", living[0], case());
        }
        let lost = Self::lost(&diaries, &living);
        for (tensor, lost) in lost.iter().enumerate() {
            let of = |rank: &u32| diaries[*rank as usize].taken_along(*rank, tensor, first);
            let Some(taken) = dead.iter().map(of).collect::<Option<Tensors>>() else { continue };
            let sum: Vec<f32> = (0..COUNT).map(|place| taken.iter().map(|kept| kept[place]).sum()).collect();
            assert_eq!(*lost, sum, "tensor {tensor}, {}", case());
        }
        diaries
    }

    /// What all have handed in, less what was delivered, and what the living still have: what is lost with
    /// the dead.
    fn lost(diaries: &[Diary], living: &[u32]) -> Tensors {
        let mut lost = vec![vec![0.0; COUNT]; EXACT];
        let delivered = diaries[living[0] as usize].delivered.iter();
        delivered.for_each(|(_, size, averages)| add(&mut lost, &sums(averages, *size), -1.0));
        for (rank, diary) in (0..).zip(diaries) {
            add(&mut lost, &Self::handed_in(rank, &diary.begun), 1.0);
            if living.contains(&rank) {
                add(&mut lost, diary.residuals.last().unwrap(), -1.0);
            }
        }
        lost
    }
}
