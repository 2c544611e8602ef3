//! Vectors that a collective replaces by its result.

use brevity::Group;

use crate::failure::Failure;
use crate::memory::Stretch;

/// Input and output as C passes them, of `n` elements each.
pub(super) struct Vectors {
    pub(super) input: *const f32,
    pub(super) output: *mut f32,
    pub(super) n: usize,
}

impl Vectors {
    /// The output, with the values of the input, apart from other memory of this name. Nothing is written
    /// unless all is as it must be.
    ///
    /// # Safety
    /// The input may be read and is set; the output may be written, and nobody else uses it.
    pub(super) unsafe fn fill(
        self,
        group: &Group,
        other: Option<(Stretch<f32>, &str)>,
    ) -> Result<Stretch<f32>, Failure> {
        let input = Stretch::new(self.input, self.n, "in")?;
        let output = Stretch::new(self.output.cast_const(), self.n, "out")?;
        if !input.is_same(output) && !input.is_apart(output) {
            return Err(Failure::argument("in and out overlap: pass separate memory, or in == out"));
        }
        if let Some((other, name)) = other {
            input.check_apart(other, &format!("in and {name}"))?;
            output.check_apart(other, &format!("out and {name}"))?;
        }
        // Refused there, a call writes nothing.
        group.check_process().map_err(Failure::from)?;
        if !input.is_same(output) {
            // SAFETY: the caller of this function guarantees both, which are apart.
            unsafe { output.unset() }.copy_from_slice(unsafe { input.read() });
        }
        Ok(output)
    }
}
