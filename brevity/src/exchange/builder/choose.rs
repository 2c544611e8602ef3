//! How tensors travel that leave it open.

use std::mem::take;

use brevity_collectives::Group;

use super::{BUCKET_BYTES, MOST_INDICES, Plan, refused};
use crate::error::Result;
use crate::exchange::Tensor;
use crate::exchange::auto::{self, Candidate};
use crate::exchange::course::Course;
use crate::policy::LowRankMethod;

impl Plan {
    /// Chooses how tensors travel that leave it open.
    pub(super) fn choose(
        &mut self,
        group: &Group,
        (bytes, keeps_going, seed): (Option<usize>, bool, u64),
        tensors: &mut [Tensor],
        course: &mut Course,
    ) -> Result<()> {
        let most = (bytes.unwrap_or(BUCKET_BYTES) / size_of::<f32>()).min(MOST_INDICES);
        for (candidate, choice) in auto::choose(group, take(&mut self.auto), most, keeps_going) {
            let Candidate { tensor, count, density, allowed, matrix } = candidate;
            if let Some(policy) = choice.policy.as_sparse() {
                self.add_sparse(policy, density, (tensor, count), course, seed);
            } else if let (true, Some(rank)) = (choice.policy.is_low_rank(), allowed.rank) {
                match matrix {
                    None => self.vectors.push((tensor, count)),
                    Some([rows, cols]) => {
                        let seed = seed.wrapping_add(tensor as u64);
                        self.add_matrix((tensor, 0), LowRankMethod::PowerSgd, [rows, cols, rank], seed)
                            .map_err(|error| refused(&tensors[tensor].name, error))?;
                    }
                }
            } else {
                self.dense.push((choice.policy.quantised_values(), (tensor, count)));
            }
            tracing::debug!(tensor = %tensors[tensor].name, "{choice}");
            tensors[tensor].choice = Some(choice);
        }
        Ok(())
    }
}
