//! The model that is trained: equal tensors, and gradients for them.

use std::ops::Range;

use brevity::compress::Density;
use brevity::compress::generator::Generator;
use brevity::server::{Method, Rule, ServerBuilder};
use brevity::{ExchangeBuilder, GradientExchange, Group, ParameterServer, Policy};

/// The tensors of a model.
pub const TENSORS: usize = 25;

/// The learning rate: none of the measured sums overflows.
pub const RATE: f32 = 0.01;

/// A model of [`TENSORS`] equal tensors, and the density of what is sent of them.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Elements of all tensors together.
    pub elements: usize,
    /// The share of entries that is sent.
    pub density: Density,
}

impl Model {
    /// Where each tensor lies among all elements.
    pub fn ranges(self) -> impl ExactSizeIterator<Item = Range<usize>> {
        let cut = move |tensor: usize| self.elements * tensor / TENSORS;
        (0..TENSORS).map(move |tensor| cut(tensor)..cut(tensor + 1))
    }

    /// Parameters of 0.
    #[must_use]
    pub fn zeros(self) -> Vec<Vec<f32>> {
        self.ranges().map(|range| vec![0.0; range.len()]).collect()
    }

    /// Standard normal gradients of a rank.
    #[must_use]
    pub fn gradients(self, rank: u32) -> Vec<Vec<f32>> {
        let mut generator = Generator::for_stream(2, u64::from(rank));
        let mut gradients = self.zeros();
        gradients.iter_mut().for_each(|gradient| generator.fill_normal(gradient));
        gradients
    }

    /// A server of this model by gradient dropping and plain SGD.
    #[must_use]
    pub fn server(self, group: &Group) -> ServerBuilder {
        let builder =
            self.ranges().enumerate().fold(ParameterServer::builder(group), |builder, (tensor, range)| {
                builder.tensor(tensor.to_string(), [range.len()])
            });
        builder.method(Method::gradient_dropping(self.density.share())).rule(Rule::Sgd)
    }

    /// An exchange of this model's gradients by gTop-k.
    #[must_use]
    pub fn exchange(self, group: &Group) -> ExchangeBuilder {
        let policy = Policy::gtopk(self.density.share());
        self.ranges().enumerate().fold(GradientExchange::builder(group), |builder, (tensor, range)| {
            builder.tensor(tensor.to_string(), [range.len()], policy)
        })
    }
}
