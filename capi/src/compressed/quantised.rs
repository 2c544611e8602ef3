//! Quantised all-reduce.

use brevity::Group;
use brevity::compress::quantise::Values;
use brevity_collectives::quantised::{describe, quantised_all_reduce};
use brevity_collectives::{Algorithm, Call, Compressed, Description, Operation};

use super::entries::values;
use super::vector::Vectors;
use super::{Arguments, Begun};
use crate::failure::Failure;
use crate::group::Shared;
use crate::lent::Lent;
use crate::memory::Stretch;
use crate::policy::brv_values;
use crate::request::finished;

/// As in C.
pub(super) struct QuantisedArguments {
    pub(super) input: *const f32,
    pub(super) output: *mut f32,
    pub(super) kept: *mut f32,
    pub(super) n: usize,
    pub(super) format: brv_values,
}

impl QuantisedArguments {
    /// # Safety
    /// As for [`Arguments::wait`].
    unsafe fn read(self, group: &Group) -> Result<Quantised<Stretch<f32>>, Failure> {
        let Self { input, output, kept, n, format } = self;
        let values = values(format)?;
        let kept = match kept.is_null() && values.is_exact() {
            true => None,
            false => Some(Stretch::new(kept.cast_const(), n, "kept")?),
        };
        let other = kept.map(|kept| (kept, "kept"));
        // SAFETY: the caller of this function guarantees the memory.
        let vector = unsafe { Vectors { input, output, n }.fill(group, other) }?;
        Ok(Quantised { vector, values, kept })
    }
}

impl Arguments for QuantisedArguments {
    unsafe fn wait(self, group: &Group) -> Result<(), Failure> {
        // SAFETY: the caller of this function guarantees the same.
        let Quantised { vector, values, kept } = unsafe { self.read(group) }?;
        // SAFETY: the caller of this function guarantees memory that nobody else uses; the two are apart.
        let kept = kept.map(|kept| unsafe { kept.unset() });
        // SAFETY: likewise.
        let vector = unsafe { vector.write() };
        Ok(group.call_compressed(&mut Quantised { vector, values, kept })?)
    }

    unsafe fn start<'a>(self, group: &Group, shared: &Shared) -> Result<Begun<'a>, Failure> {
        // SAFETY: the caller of this function guarantees the same.
        let Quantised { vector, values, kept } = unsafe { self.read(group) }?;
        let lend = |stretch| {
            // SAFETY: the caller of this function guarantees memory that nobody else uses.
            unsafe { Lent::new(stretch, &shared.loans) }
        };
        let kept = kept.map(|kept| {
            // SAFETY: likewise.
            unsafe { kept.unset() };
            lend(kept)
        });
        let collective = Quantised { vector: lend(vector), values, kept };
        Ok(Begun::on_memory(finished(group.start_compressed(collective))))
    }
}

/// The collective, which also writes what this rank keeps: that comes although the request is freed.
struct Quantised<V> {
    vector: V,
    values: Values,
    kept: Option<V>,
}

impl<V: AsRef<[f32]> + AsMut<[f32]> + Send> Compressed for Quantised<V> {
    type Output = ();

    const OPERATION: Operation = Operation::QUANTISED_ALL_REDUCE;

    fn check(&self) -> brevity_collectives::Result<()> {
        Ok(())
    }

    fn description(&self) -> Description {
        describe(self.vector.as_ref().len(), self.values)
    }

    async fn run(&mut self, call: &Call<'_, '_>, _: Option<Algorithm>) -> brevity_collectives::Result<()> {
        let mut kept = Vec::new();
        quantised_all_reduce(call, self.vector.as_mut(), self.values, &mut kept, 0).await?;
        if let Some(place) = &mut self.kept {
            place.as_mut().copy_from_slice(&kept);
        }
        Ok(())
    }
}
