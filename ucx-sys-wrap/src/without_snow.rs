//! Replaces the crate `snow` in builds without the feature `encryption`: no handshake can begin.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// Encryption is not built in.
pub(crate) struct Error;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "built without the feature `encryption`: build it with that, or unset BREVITY_ENCRYPT on rank 0",
        )
    }
}

pub(crate) struct NoiseParams(Infallible);

impl FromStr for NoiseParams {
    type Err = Error;

    fn from_str(_: &str) -> Result<Self, Error> {
        Err(Error)
    }
}

pub(crate) struct Builder<'a>(Infallible, PhantomData<&'a ()>);

impl Builder<'_> {
    pub(crate) fn new(parameters: NoiseParams) -> Self {
        match parameters.0 {}
    }

    pub(crate) fn psk(self, _: u8, _: &[u8; 32]) -> Result<Self, Error> {
        match self.0 {}
    }

    pub(crate) fn prologue(self, _: &[u8]) -> Result<Self, Error> {
        match self.0 {}
    }

    pub(crate) fn build_initiator(self) -> Result<HandshakeState, Error> {
        match self.0 {}
    }

    pub(crate) fn build_responder(self) -> Result<HandshakeState, Error> {
        match self.0 {}
    }
}

pub(crate) struct HandshakeState(Infallible);

impl HandshakeState {
    pub(crate) fn read_message(&mut self, _: &[u8], _: &mut [u8]) -> Result<usize, Error> {
        match self.0 {}
    }

    pub(crate) fn write_message(&mut self, _: &[u8], _: &mut [u8]) -> Result<usize, Error> {
        match self.0 {}
    }

    pub(crate) fn is_handshake_finished(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn into_transport_mode(self) -> Result<TransportState, Error> {
        match self.0 {}
    }
}

pub(crate) struct TransportState(Infallible);

impl TransportState {
    pub(crate) fn read_message(&mut self, _: &[u8], _: &mut [u8]) -> Result<usize, Error> {
        match self.0 {}
    }

    pub(crate) fn write_message(&mut self, _: &[u8], _: &mut [u8]) -> Result<usize, Error> {
        match self.0 {}
    }

    pub(crate) fn rekey_outgoing(&mut self) {
        match self.0 {}
    }

    pub(crate) fn rekey_incoming(&mut self) {
        match self.0 {}
    }
}
