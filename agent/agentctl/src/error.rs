//! What a user sees when something fails: what failed, why, and a hint.

use std::error::Error;
use std::fmt;
use std::io;

use kube::client::UpgradeConnectionError::ProtocolSwitch;
use tributary::cluster::error::chain;

/// A failed command: what failed, the chain of causes, and what to do about it.
#[derive(Clone, Debug)]
pub struct Failure {
    what: String,
    causes: Vec<String>,
    hint: Option<String>,
    broken_pipe: bool,
    denied: bool,
}

/// Result of a command.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// `what` in the form "failed to …".
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), causes: Vec::new(), hint: None, broken_pipe: false, denied: false }
    }

    /// Adds an error and everything behind it as causes.
    #[must_use]
    pub(crate) fn because(mut self, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error = error.into();
        let mut next: Option<&(dyn Error + 'static)> = Some(error.as_ref());
        while let Some(cause) = next {
            let (code, ends) = match cause.downcast_ref() {
                Some(kube::Error::Api(status)) => (status.code, true),
                Some(kube::Error::UpgradeConnection(ProtocolSwitch(code))) => (code.as_u16(), false),
                _ => (0, false),
            };
            self.denied |= matches!(code, 401 | 403);
            let text = if ends { chain(cause) } else { cause.to_string() };
            // Many libraries repeat their source in their own message.
            if !self.causes.last().is_some_and(|last| last.contains(&text)) {
                self.causes.push(text);
            }
            next = cause.source().filter(|_| !ends);
        }
        self
    }

    /// Adds what the user can do.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the same as another failure.
    #[must_use]
    pub(crate) fn hint_of(self, other: Self) -> Self {
        Self { hint: other.hint, ..self }
    }

    /// What failed and why, in one line, for documents.
    pub(crate) fn line(&self) -> String {
        let parts = std::iter::once(&self.what).chain(&self.causes).map(|part| part.trim().replace('\n', "; "));
        parts.collect::<Vec<_>>().join(": ")
    }

    /// The API server does not know who asks, or that may not: time alone changes nothing.
    pub(crate) fn is_denied(&self) -> bool {
        self.denied
    }

    /// The reader of standard output went away.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.broken_pipe
    }
}

/// Makes of an error the failure `what`, in the form "failed to …", and says what the user can do.
pub(crate) fn failed<E: Into<Box<dyn Error + Send + Sync>>>(
    what: impl Into<String>,
    hint: impl Into<String>,
) -> impl Fn(E) -> Failure {
    let failure = Failure::new(what).hint(hint);
    move |error| failure.clone().because(error)
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.what)?;
        for cause in &self.causes {
            write!(f, "\n  caused by: {}", cause.trim().replace('\n', "\n    "))?;
        }
        match &self.hint {
            Some(hint) => write!(f, "\n\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// For standard output alone: every other failure names its own action.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let broken_pipe = error.kind() == io::ErrorKind::BrokenPipe;
        Self { broken_pipe, ..Self::new("failed to write the output").because(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The danger: a user reads `Status { metadata: None, … }`.
    #[test]
    fn of_an_answer_of_the_api_server_its_sentence_is_shown() {
        let status = kube::core::Status::failure("secrets \"x\" not found", "NotFound").with_code(404);
        let failure = Failure::new("failed to delete it").because(kube::Error::Api(Box::new(status)));
        assert_eq!(failure.to_string(), "error: failed to delete it\n  caused by: secrets \"x\" not found");
    }

    #[test]
    fn a_failure_reads_from_what_to_hint() {
        let failure = Failure::new("failed to reach the agent")
            .because(io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused"))
            .hint("is it running?");
        assert_eq!(
            failure.to_string(),
            "error: failed to reach the agent\n  caused by: connection refused\n\nhint: is it running?"
        );
        assert_eq!(failure.line(), "failed to reach the agent: connection refused");
    }

    /// The danger: a connection breaks, nothing is done, and the exit code is 0.
    #[test]
    fn a_closed_standard_output_is_no_failure_and_a_broken_connection_is() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(Failure::from(broken()).is_broken_pipe());
        assert!(!Failure::new("failed to delete it").because(broken()).is_broken_pipe());
    }

    /// The danger: `caused by: `, and nothing behind it.
    #[test]
    fn an_answer_without_words_is_told_by_its_code() {
        let status = kube::core::Status::failure("", "Failed to parse error data").with_code(502);
        let failure = Failure::new("failed to delete it").because(kube::Error::Api(Box::new(status)));
        assert_eq!(failure.line(), "failed to delete it: the API server, or a proxy before it, answered 502");
    }
}
