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
        // SAFETY: the caller of this function guarantees the same.
        unsafe { self.fill_as("out", group, other) }
    }

    /// Likewise, of an output that is an argument of this name.
    ///
    /// # Safety
    /// As for [`fill`](Self::fill).
    pub(super) unsafe fn fill_as(
        self,
        own: &str,
        group: &Group,
        other: Option<(Stretch<f32>, &str)>,
    ) -> Result<Stretch<f32>, Failure> {
        let input = Stretch::new(self.input, self.n, "in")?;
        let output = Stretch::new(self.output.cast_const(), self.n, own)?;
        if !input.is_same(output) && !input.is_apart(output) {
            let text = format!("in and {own} overlap: pass separate memory, or in == {own}");
            return Err(Failure::argument(text));
        }
        if let Some((other, name)) = other {
            input.check_apart(other, &format!("in and {name}"))?;
            output.check_apart(other, &format!("{own} and {name}"))?;
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
