//! The errors of the facade.

use brevity_collectives::Error as Collective;

/// The result of the facade's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. Each variant says what still holds and what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A rank handed in a value that is not finite, or one of its sums is not finite. Every rank gets the
    /// same error. Nothing was applied, the step is not in the residuals, and the group stays usable. The
    /// residuals are restored up to one rounding.
    #[error(
        "rank {rank} has a value or a sum that is not finite in tensor {tensor:?}: the step was left out on \
         all ranks"
    )]
    NonFinite {
        /// The rank whose value it is.
        rank: u32,
        /// The tensor.
        tensor: String,
    },

    /// A sum over all ranks is not finite. Every rank gets the same error; the state afterwards is as for
    /// [`NonFinite`](Self::NonFinite).
    #[error("the sum over all ranks is not finite in tensor {tensor:?}: the step was left out on all ranks")]
    Overflow {
        /// The tensor.
        tensor: String,
    },

    /// The gradients do not fit the tensors that the exchange was built for. Nothing was sent.
    #[error(
        "{what} has {found} elements, expected {expected}: hand in the tensors in the order of the builder"
    )]
    Shape {
        /// Which argument: the list of gradients, or a tensor by name.
        what: String,
        /// Its length.
        found: usize,
        /// The length that it must have.
        expected: usize,
    },

    /// A policy's parameter is out of range, or the tensor is too large for it.
    #[error("tensor {tensor:?}: {parameter} is {found}, expected {expected}")]
    Policy {
        /// The tensor.
        tensor: String,
        /// The parameter.
        parameter: &'static str,
        /// Its value.
        found: f64,
        /// Its range.
        expected: &'static str,
    },

    /// Two tensors have the same name.
    #[error("there are two tensors named {tensor:?}: give each its own name")]
    DuplicateName {
        /// The name.
        tensor: String,
    },

    /// The state of an exchange can't be saved or loaded: it is cut off, damaged, or belongs to something
    /// else.
    #[error(transparent)]
    State(#[from] brevity_compress::Error),

    /// A collective failed. After an exchange, the gradients are in the residuals and are sent by the next
    /// exchange that succeeds: do not hand them in again.
    #[error(transparent)]
    Collective(#[from] Collective),
}
