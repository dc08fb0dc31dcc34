//! A request to the API server that failed, in words.

use std::error::Error;

use kube::core::Status;

use super::fence::FenceError;

/// A request that failed: what was tried, on which object, and why it did not work.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action} {object}")]
pub struct RequestError {
    action: &'static str,
    object: String,
    #[source]
    cause: Cause,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// This agent may not write now, or the answer took too long. Nothing is wrong with the object.
    #[error(transparent)]
    Fenced(FenceError),
    /// The API server said no. `message` is its own text.
    #[error("{message}")]
    Refused {
        /// HTTP status code.
        code: u16,
        /// The Kubernetes reason: `NotFound`, `Conflict`, `Invalid`, …
        reason: String,
        /// What the API server wrote.
        message: String,
    },
    /// The object is controlled by another one, and is left as it is.
    #[error("it is controlled by {owner}, not by {expected}")]
    Foreign {
        /// Kind and name of its controller, or "nobody".
        owner: String,
        /// Kind and name of the controller it should have.
        expected: String,
    },
    /// The request did not get there, or the answer did not come back.
    #[error("the API server could not be reached")]
    Transport(#[source] Box<kube::Error>),
    /// The answer is not what was asked for.
    #[error("the API server's answer could not be read")]
    Answer(#[source] serde_json::Error),
}

/// Whether an API server says so, in these words or among them, when there is no room in a ResourceQuota, or when nobody has
/// counted yet what a new quota is about.
///
/// Source: kubernetes `apiserver/pkg/admission/plugin/resourcequota`.
pub fn is_of_quota(words: &str) -> bool {
    words.contains("exceeded quota") || words.contains("status unknown for quota")
}

/// Whether an API server says so, in these words or among them, when we have no right to what is asked: nothing is wrong with
/// that.
///
/// Source: kubernetes `apiserver/pkg/endpoints/handlers/responsewriters`.
pub fn is_of_rights(words: &str) -> bool {
    words.contains("is forbidden: User") && words.contains(" cannot ") && words.contains(" resource ")
}

/// Whether an API server says so, in these words or among them, when a webhook or a policy refuses what is asked.
///
/// Source: kubernetes `apiserver/pkg/admission/plugin/webhook/errors` and `.../plugin/policy/validating`.
pub fn is_of_policy(words: &str) -> bool {
    words.contains("admission webhook") || words.contains("ValidatingAdmissionPolicy")
}

/// An object that cannot be made because its name is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its kind and name.
    pub object: String,
    /// Kind, name and UID of its controller; `nobody` if it has none.
    pub owner: String,
}

impl Taken {
    /// What to tell the user.
    pub fn sentence(&self) -> String {
        format!(
            "{} is there already and belongs to {}; nothing of it is changed: delete or rename it, or choose another name",
            self.object, self.owner
        )
    }

    /// Whether it is left over from an earlier MiniCluster or HostedBurst of this name: it goes by itself.
    pub fn is_left_over(&self, name: &str) -> bool {
        ["MiniCluster", "HostedBurst"].iter().any(|kind| self.owner.starts_with(&format!("{kind} {name} (")))
    }
}

/// What was asked for by `name`, or that it does not exist, by the API server's own word. That nothing of its kind is served
/// is an error, though its code is 404 as well: a definition that is being installed or replaced deletes nothing.
///
/// # Errors
/// Every other error of `answer`.
pub fn absence<T>(answer: kube::Result<T>, name: &str) -> kube::Result<Option<T>> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status))
            if status.reason == "NotFound" && status.details.as_ref().is_some_and(|about| about.name == name) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl RequestError {
    /// A failure of `action` (a verb: "apply", "delete") on `object` ("Job default/flux-sample").
    pub fn new(action: &'static str, object: impl Into<String>, cause: impl Into<Cause>) -> Self {
        Self { action, object: object.into(), cause: cause.into() }
    }

    /// Whose object has the name, if it is another's: what to tell people.
    pub fn taken(&self) -> Option<Taken> {
        let Cause::Foreign { owner, .. } = &self.cause else { return None };
        Some(Taken { object: self.object.clone(), owner: owner.clone() })
    }

    /// Why it failed.
    pub fn cause(&self) -> &Cause {
        &self.cause
    }
}

impl Cause {
    /// The object does not exist (or its namespace does not).
    pub fn is_not_found(&self) -> bool {
        self.is(404)
    }

    /// Somebody was faster: another resource version, another UID, another field owner, or the name is taken.
    pub fn is_conflict(&self) -> bool {
        // A patch with another UID is refused as a change of a field that cannot change.
        let other_uid = |message: &str| message.contains("metadata.uid: Invalid value");
        self.is(409) || matches!(self, Self::Refused { message, .. } if self.is(422) && other_uid(message))
    }

    /// The name is taken.
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Refused { reason, .. } if reason == "AlreadyExists")
    }

    /// The object is not acceptable, or changes what cannot change.
    pub fn is_invalid(&self) -> bool {
        self.is(422) || self.is(400)
    }

    /// We have no right to it, or are not known.
    pub fn is_denied(&self) -> bool {
        self.is(401) || self.is(403)
    }

    /// There is no room for it in a ResourceQuota.
    pub fn is_quota(&self) -> bool {
        matches!(self, Self::Refused { message, .. } if is_of_quota(message))
    }

    /// We have no right to it, as it may be with any object of the kind: nothing is wrong with the object.
    pub fn is_of_rights(&self) -> bool {
        self.is(401) || matches!(self, Self::Refused { message, .. } if is_of_rights(message))
    }

    /// A webhook or a policy refuses it.
    pub fn is_of_policy(&self) -> bool {
        matches!(self, Self::Refused { message, .. } if is_of_policy(message))
    }

    /// A webhook has a say in it that cannot be asked without doing it.
    pub fn is_of_dry_run(&self) -> bool {
        matches!(self, Self::Refused { message, .. } if message.contains("does not support dry run"))
    }

    /// Why a request failed that is among the causes of `error`.
    pub fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut causes = std::iter::successors(Some(error), |&error| error.source());
        causes.find_map(|error| error.downcast_ref())
    }

    /// Trying the same again later can help: nothing is wrong with what was sent.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Fenced(_) | Self::Transport(_) => true,
            Self::Refused { code, .. } => matches!(code, 429 | 500..) || self.is_conflict(),
            Self::Foreign { .. } | Self::Answer(_) => false,
        }
    }

    /// It passes when the API server is back or less busy, or when the object is read anew. What a server itself fails at may
    /// last: a webhook that is broken, node ports that are used up.
    pub(crate) fn is_passing(&self) -> bool {
        self.is_transient() && !self.is(500)
    }

    /// The API server has more to do than it can: asking it as much as before makes that worse.
    pub fn is_overload(&self) -> bool {
        match self {
            Self::Fenced(FenceError::TimedOut { .. }) => true,
            Self::Refused { code, .. } => matches!(code, 429 | 503 | 504),
            _ => false,
        }
    }

    fn is(&self, expected: u16) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == expected)
    }
}

impl From<kube::Error> for Cause {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from(*status),
            kube::Error::SerdeError(error) => Self::Answer(error),
            kube::Error::Service(error) => match error.downcast::<FenceError>() {
                Ok(fenced) => Self::Fenced(*fenced),
                Err(error) => Self::Transport(Box::new(kube::Error::Service(error))),
            },
            other => Self::Transport(Box::new(other)),
        }
    }
}

impl From<Status> for Cause {
    fn from(status: Status) -> Self {
        Self::Refused { code: status.code, reason: status.reason, message: status.message }
    }
}

impl From<kube::core::request::Error> for Cause {
    fn from(error: kube::core::request::Error) -> Self {
        Self::Transport(Box::new(kube::Error::BuildRequest(error)))
    }
}

/// An error and its causes in one line, joined by `": "`. A cause whose text the line has already (foreign errors
/// repeat their sources) is left out. Of an answer of the API server its sentence is taken: kube shows all of it, as Rust does.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut line = String::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        let text;
        (text, next) = match cause.downcast_ref() {
            Some(kube::Error::Api(status)) if status.message.is_empty() => {
                (format!("the API server, or a proxy before it, answered {}", status.code), None)
            }
            Some(kube::Error::Api(status)) => (status.message.clone(), None),
            _ => (cause.to_string(), cause.source()),
        };
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, reason: &str) -> Cause {
        let status = Status { code, reason: reason.into(), message: "no such thing".into(), ..Status::default() };
        kube::Error::Api(status.boxed()).into()
    }

    #[test]
    fn a_refusal_is_said_once_and_names_the_object() {
        let error = RequestError::new("apply", "Job default/sample", refused(404, "NotFound"));
        assert_eq!(chain(&error), "failed to apply Job default/sample: no such thing");
        assert!(error.cause().is_not_found());
        assert!(Cause::of(&error).is_some_and(Cause::is_not_found));
    }

    /// The danger: people read `ApiError: … (Status { status: Some(Failure), code: 403, …`, or nothing.
    #[test]
    fn of_an_answer_of_the_api_server_its_sentence_is_said() {
        let said =
            |message: &str| chain(&kube::Error::Api(Status::failure(message, "Forbidden").with_code(403).boxed()));
        assert_eq!(said("secrets is forbidden"), "secrets is forbidden");
        assert_eq!(said(""), "the API server, or a proxy before it, answered 403");
    }

    #[test]
    fn only_the_object_itself_can_be_absent() {
        let failed = |value: serde_json::Value| -> kube::Result<()> {
            Err(kube::Error::Api(serde_json::from_value::<Status>(value).unwrap().boxed()))
        };
        let gone = |name: &str| serde_json::json!({"code": 404, "reason": "NotFound", "details": {"name": name}});
        assert!(matches!(absence(Ok(7), "lake"), Ok(Some(7))));
        assert!(matches!(absence(failed(gone("lake")), "lake"), Ok(None)));
        // As kube reads "404 page not found", which is what an API server says of a kind that it does not serve.
        let unserved = serde_json::json!({"code": 404, "reason": "Failed to parse error data"});
        for other in [unserved, gone("another"), serde_json::json!({"code": 404, "reason": "NotFound"})] {
            assert!(absence(failed(other.clone()), "lake").is_err(), "{other}");
        }
    }

    #[test]
    fn what_can_help_by_waiting_is_transient() {
        for (code, transient) in [(400, false), (403, false), (409, true), (422, false), (429, true), (503, true)] {
            assert_eq!(refused(code, "").is_transient(), transient, "{code}");
        }
    }

    #[test]
    fn the_fence_is_seen_through_the_client() {
        let error = kube::Error::Service(Box::new(FenceError::NotLeading));
        assert!(matches!(Cause::from(error), Cause::Fenced(FenceError::NotLeading)));
    }
}
