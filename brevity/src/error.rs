//! The errors of the facade.

use brevity_collectives::Error as Collective;
use brevity_compress::quantise::Values;

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

    /// A policy's parameter is out of range.
    #[error("tensor {tensor:?}: {parameter} is {}, expected {expected}", shown(*found))]
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

    /// A sparse policy has a setting that it does not take.
    #[error("tensor {tensor:?}: {policy} does not take {setting}: {reason}")]
    PolicySetting {
        /// The tensor.
        tensor: String,
        /// The method of its policy, as in its text.
        policy: &'static str,
        /// The setting.
        setting: &'static str,
        /// Why.
        reason: &'static str,
    },

    /// A quantised tensor whose format of values has errors too large for a residual.
    #[error(
        "tensor {tensor:?}: its residual would grow without bound with {values} values: use the mean in \
         place of the smallest magnitude, or a topk policy, which selects no zeros"
    )]
    Diverges {
        /// The tensor.
        tensor: String,
        /// The format of its values.
        values: Values,
    },

    /// A policy needs a feature of this crate that it was built without.
    #[error(
        "tensor {tensor:?}: the policy {policy} needs the feature {feature} of the crate brevity: build it \
         with that feature, or take low-rank, which needs none"
    )]
    Feature {
        /// The tensor.
        tensor: String,
        /// The policy's name.
        policy: &'static str,
        /// The feature's name.
        feature: &'static str,
    },

    /// A text is no policy, or no rule for policies.
    #[error("{text:?} is no policy: expected {expected}")]
    PolicyText {
        /// The text, or the part that is wrong.
        text: String,
        /// What is expected.
        expected: String,
    },

    /// No rule is for this tensor.
    #[error("no rule for policies is for tensor {tensor:?}: end with a rule for all others, as *=dense")]
    NoRule {
        /// The tensor.
        tensor: String,
    },

    /// The exchange or server has no tensor of this name.
    #[error("no tensor is named {tensor:?}: pass a name that it was built with")]
    NoSuchTensor {
        /// The name.
        tensor: String,
    },

    /// Two tensors have the same name.
    #[error("there are two tensors named {tensor:?}: give each its own name")]
    DuplicateName {
        /// The name.
        tensor: String,
    },

    /// A tensor has more elements than its policy, or memory, can address.
    #[error("tensor {tensor:?} of {} elements is too large, expected {expected}", product(shape))]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        shape: Vec<usize>,
        /// What there may be.
        expected: &'static str,
    },

    /// There is no memory for the residuals of an exchange, or for the work of its steps. Nothing was sent,
    /// nothing has changed.
    #[error("no memory for {bytes} bytes of {what}: make tensors smaller, or give the process more")]
    Memory {
        /// The tensor, or all tensors of a kind.
        what: String,
        /// The bytes that were asked for.
        bytes: usize,
    },

    /// The state of an exchange can't be saved or loaded: it is cut off, damaged, or belongs to something
    /// else.
    #[error(transparent)]
    State(#[from] brevity_compress::Error),

    /// A residual, or what momentum keeps, has a sum with that of a saved state that is not finite. Nothing
    /// has changed.
    #[error(
        "what rank {rank} has saved of tensor {tensor:?} and what this rank has of it have a sum that is not \
         finite: let another rank take it over"
    )]
    StateOverflow {
        /// The rank that saved.
        rank: u32,
        /// The tensor.
        tensor: String,
    },

    /// A setting of a parameter server is out of range.
    #[error("the server's {parameter} is {found}, expected {expected}")]
    Server {
        /// The setting.
        parameter: &'static str,
        /// Its value.
        found: String,
        /// Its range.
        expected: &'static str,
    },

    /// Gradients or parameters of a parameter server have a value, or a sum with one, that is not finite.
    /// Nothing was sent.
    #[error("rank {rank} has a value or a sum that is not finite in tensor {tensor:?}: nothing was sent")]
    GradientNotFinite {
        /// This rank.
        rank: u32,
        /// The tensor.
        tensor: String,
    },

    /// A call on a parameter server at a time when it makes no sense. Nothing has changed.
    #[error("{what}: {remedy}")]
    Order {
        /// The call.
        what: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },

    /// A rank that serves has died, has left, or has closed its side. The last push to it is kept aside.
    #[error(
        "rank {rank}, which serves shard {shard}, is lost: save this worker's state, and build a server anew \
         from the saved states"
    )]
    ServerLost {
        /// The rank, by its number in the world.
        rank: u32,
        /// The number of its shard.
        shard: u32,
    },

    /// A shard has not answered in time. It may still do so: pull again.
    #[error(
        "shard {shard} of rank {rank} has not answered within {after:?}: does it run? Pull again, or give up"
    )]
    ServerSilent {
        /// The rank, by its number in the world.
        rank: u32,
        /// The number of its shard.
        shard: u32,
        /// The timeout.
        after: std::time::Duration,
    },

    /// A rank that serves waits for workers that have not left, and of which nothing was heard in time.
    #[error(
        "nothing was heard within {after:?} of ranks {ranks:?}, which have not left the server: do they run? \
         Serve again with a longer timeout, or give up"
    )]
    WorkersSilent {
        /// The ranks, by their numbers in the world.
        ranks: Vec<u32>,
        /// The timeout.
        after: std::time::Duration,
    },

    /// A shard has refused a request, or has sent something that is no reply. A push that was refused is back
    /// in the residuals. Entries that would have made the model overflow are dropped, and the others applied:
    /// the reason says so.
    #[error("shard {shard} of rank {rank} refuses a request, or answers wrongly: {reason}")]
    Refused {
        /// The rank, by its number in the world.
        rank: u32,
        /// The number of its shard.
        shard: u32,
        /// Why.
        reason: String,
    },

    /// A collective failed. After an exchange, the gradients are in the residuals and are sent by the next
    /// exchange that succeeds: do not hand them in again.
    #[error(transparent)]
    Collective(#[from] Collective),
}

#[cfg(any(feature = "smol", feature = "tokio"))]
impl Error {
    pub(crate) fn watching(error: std::io::Error) -> Self {
        let action = "can't watch the group's descriptor in this runtime";
        Self::Collective(Collective::Transport(ucx_sys_wrap::Error::system(action, error)))
    }
}

/// A number, in short.
fn shown(number: f64) -> String {
    let is_plain = number == 0.0 || (1e-5..1e15).contains(&number.abs());
    if is_plain { format!("{number}") } else { format!("{number:e}") }
}

/// Dimensions, as 3 x 4.
fn product(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_exact() {
        let policy =
            |found| Error::Policy { tensor: "t".into(), parameter: "density", found, expected: "more" };
        for (found, text) in [
            (0.0, "is 0,"),
            (1.5, "is 1.5,"),
            (-f64::MIN_POSITIVE, "is -2.2250738585072014e-308,"),
            (f64::NAN, "is NaN,"),
        ] {
            assert!(policy(found).to_string().contains(text), "{}", policy(found));
        }
        let large = Error::TooLarge { tensor: "t".into(), shape: vec![1 << 60, 3], expected: "less" };
        assert!(large.to_string().contains("1152921504606846976 x 3 elements"), "{large}");
    }
}
