"""Hugging Face model families, one file each: conversion of config and weights in both directions."""
