//! Amounts of resources, as upstream's schema takes them: integers or text.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1 as core;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::schema::{Embedded, is_default, quantity};

/// A Kubernetes quantity as the user wrote it: `4` or `"500m"`. It serializes back in the same form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    /// A bare integer.
    Integer(i64),
    /// Text with an optional suffix, in Kubernetes' quantity format.
    Text(String),
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
        }
    }
}

impl Amount {
    /// Whether it is nothing, in whatever unit.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Self::Integer(value) => *value == 0,
            Self::Text(value) => {
                let number = value.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
                number.contains('0') && number.bytes().all(|byte| b"0.".contains(&byte))
            }
        }
    }
}

/// Reads an amount that is not below zero.
pub(crate) fn natural<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Amount, D::Error> {
    let amount = Amount::deserialize(deserializer)?;
    match amount.to_string().starts_with('-') {
        true => Err(D::Error::custom(format!("{amount} is negative"))),
        false => Ok(amount),
    }
}

impl From<&Amount> for k8s_openapi::apimachinery::pkg::api::resource::Quantity {
    fn from(amount: &Amount) -> Self {
        Self(amount.to_string())
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        quantity(generator)
    }
}

/// Amounts by resource name (`cpu`, `memory`, `nvidia.com/gpu`, …).
pub type ResourceList = BTreeMap<String, Amount>;

/// What a container asks for and may use at most.
///
/// <https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/>
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceRequirements {
    /// Names of dynamic resource claims of the pod that this container uses.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(with = "Embedded<Vec<core::ResourceClaim>>")]
    pub claims: Vec<core::ResourceClaim>,

    /// The most the container may use, by resource name.
    #[serde(skip_serializing_if = "is_default")]
    pub limits: ResourceList,

    /// What the scheduler must set aside for the container, by resource name. Where a limit is written and no
    /// request, Kubernetes takes the limit.
    #[serde(skip_serializing_if = "is_default")]
    pub requests: ResourceList,
}

impl ResourceRequirements {
    /// The same in Kubernetes' own type; `None` if nothing was written.
    pub fn to_kubernetes(&self) -> Option<core::ResourceRequirements> {
        let quantities = |list: &ResourceList| {
            (!list.is_empty()).then(|| list.iter().map(|(name, amount)| (name.clone(), amount.into())).collect())
        };
        (!is_default(self)).then(|| core::ResourceRequirements {
            claims: (!self.claims.is_empty()).then(|| self.claims.clone()),
            limits: quantities(&self.limits),
            requests: quantities(&self.requests),
        })
    }

    /// What the container is sure to have of `resource`: its request, else its limit (Kubernetes' own rule).
    pub fn effective_request(&self, resource: &str) -> Option<&Amount> {
        self.requests.get(resource).or_else(|| self.limits.get(resource))
    }
}
